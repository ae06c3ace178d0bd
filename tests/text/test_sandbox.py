"""Templates that mean harm, and templates that merely do much: neither hangs, escapes or fills the memory."""

from __future__ import annotations

import time

import pytest

from kvledger.clock import ManualClock, SystemClock
from kvledger.errors import TemplateError
from kvledger.text.chat import Chat, Message
from kvledger.text.template import ChatTemplate
from tests.text.vocabularies import byte_level

TINY = byte_level()
CHAT = Chat((Message("user", "hello", "messages[0]"),), ({"name": "f", "n": 1},))


def render(source: str, chat: Chat = CHAT) -> str:
    return TINY.decode(ChatTemplate(source, TINY, clock=ManualClock(1_700_000_000)).render(chat).tokens)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages[0].content.__init__.__globals__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__.os }}",
        "{{ strftime_now.__self__.x }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ lipsum.__globals__.os }}",
        "{{ (messages | map('upper')).gi_frame.f_back }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '%s' % messages }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{% set x = namespace() %}{{ x }}",
        "{% set x = namespace() %}{{ [x] | string }}",
        "{{ range }}",
        "{{ messages | map('upper') }}",
        "{% include 'x' %}",
        "{% import 'x' as x %}",
        "{{ messages | attr('__class__') }}",
    ],
)
def test_nothing_leads_out(source):
    with pytest.raises(TemplateError):
        render(source)


DOUBLING = "{% set ns = namespace(x=START) %}{% for i in range(200) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x }}"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}0123456789{% endfor %}{% endfor %}",
        "{{ 'a' * 10**10 }}",
        "{{ 10**10 * 'a' }}",
        "{{ ['a' * 1000] * 10**9 }}",
        "{{ (['a' * 10**5] * 10**4) | join }}",
        "{{ (['a' * 10**5] * 10**4) | tojson }}",
        "{{ (['a' * 10**5] * 10**4) ~ '' }}",
        "{{ ('a' * 10**5).replace('a', 'b' * 10**5) }}",
        "{{ ('a' * 10**5) | replace('', 'b' * 10**5) }}",
        "{{ ('b' * 10**5).join(range(10**4) | map('string') | list) }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ 2.5 ** (10**9) }}",
        DOUBLING.replace("START", "'a'").replace("STEP", "ns.x + ns.x"),
        DOUBLING.replace("START", "'a'").replace("STEP", "ns.x ~ ns.x"),
        DOUBLING.replace("START", "'a'").replace("STEP", "'{}{}'.format(ns.x, ns.x)"),
        DOUBLING.replace("START", "[1]").replace("STEP", "ns.x + ns.x"),
        DOUBLING.replace("START", "[1]").replace("STEP", "[ns.x, ns.x]"),
        DOUBLING.replace("START", "[1]").replace("STEP", "(ns.x, ns.x)"),
        DOUBLING.replace("START", "[1]").replace("STEP", "{'a': ns.x, 'b': ns.x}"),
        DOUBLING.replace("START", "[1]").replace("STEP", "dict(a=ns.x, b=ns.x)"),
        DOUBLING.replace("START", "3").replace("STEP", "ns.x * ns.x"),
        DOUBLING.replace("START", "3").replace("STEP", "ns.x + ns.x"),
        "{% set ns = namespace(v=1) %}{% macro m() %}{% set ns.v = varargs %}{% endmacro %}"
        "{% for i in range(99) %}{{ m(ns.v, ns.v) }}{% endfor %}{{ ns.v == [ns.v] }}",
        "{% macro f(n) %}{{ f(n - 1) }}{{ f(n - 1) }}{% endmacro %}{{ f(900) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
        "{% for m in messages recursive %}{{ loop(messages) }}{{ loop(messages) }}{% endfor %}",
        "{{ 'x'.center(10**9) }}",
        "{{ 'x'.ljust(10**9) }}",
        "{{ 'x'.expandtabs(10**9) }}",
        "{{ 'x' | center(10**9) }}",
        "{{ 'x' | indent(10**9) }}",
        "{{ [1] | tojson(indent=10**9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ 'x' | format(1) }}",
        "{{ 1.5 | round(10**9) }}",
    ],
)
def test_much_out_of_little_is_stopped(source):
    start = time.process_time()
    with pytest.raises(TemplateError):
        render(source)
    assert time.process_time() - start < 5


def test_too_many_seconds_are_stopped_too():
    class Hurrying(ManualClock):
        def monotonic(self) -> float:
            self.advance(0.01)
            return super().monotonic()

    template = ChatTemplate("{% for i in range(99999) %}{% endfor %}", TINY, clock=Hurrying())
    with pytest.raises(TemplateError, match="was stopped"):
        template.render(CHAT)


def test_a_long_chat_is_not_much():
    source = "{% for m in messages %}{% for n in messages %}{% endfor %}{{ m.role }}{% endfor %}"
    messages = tuple(Message("user", "hello " * 50, f"messages[{i}]") for i in range(600))
    template = ChatTemplate(source, TINY, clock=SystemClock())
    assert TINY.decode(template.render(Chat(messages)).tokens) == "user" * 600


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{% if %}", "is broken in line 1"),
        ("a\n{{ b | nonsense }}", "is broken in line 2: No filter named 'nonsense'."),
        ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "cannot be compiled"),
        ("x" * 1_000_001, "has 1000001 characters"),
        (None, "carries no chat template"),
    ],
)
def test_templates_that_are_none(source, says):
    with pytest.raises(TemplateError, match=says):
        ChatTemplate(source, TINY)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ raise_exception('Only ' + 'one system message.') }}", "refuses these messages: Only one system message.$"),
        ("{{ messages.nothing.more }}", "fails on these messages: 'list object' has no attribute 'nothing'.$"),
        ("{{ 1 / 0 }}", "fails on these messages: division by zero.$"),
        ("{{ 'a' + 1 }}", "fails on these messages"),
    ],
)
def test_templates_that_fail(source, says):
    with pytest.raises(TemplateError, match=says):
        render(source)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ '%d' }}{{ 7 % 4 }}{{ 2 ** 10 }}{{ 7 // 2 }}{{ -3 + 1 }}", "%d310243-2"),
        ("{{ messages | length }}{{ messages[0]['content'] | upper }}{{ nothing }}", "1HELLO"),
        ("{{ tools[0] | tojson }}", '{"name": "f", "n": 1}'),
        ("{{ tools[0] | tojson(indent=2) }}", '{\n  "name": "f",\n  "n": 1\n}'),
        ("{{ {'a': '<é>', 'b': [none, true]} | tojson }}", '{"a": "<é>", "b": [null, true]}'),
        ("{{ messages }}", "[{'role': 'user', 'content': 'hello'}]"),
        ("{{ [1, 'a'] }}{{ (1, none) }}{{ true }}", "[1, 'a'](1, None)True"),
        ("{{ ['a', 1] | join('-') }}{{ messages | join(', ', attribute='role') }}", "a-1user"),
        ("{% for m in messages %}{{ loop.index0 }}{{ loop.last }}{{ loop.length }}{% endfor %}", "0True1"),
        (
            "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 3 %}{% break %}{% endif %}{{ i }}"
            "{% endfor %}",
            "013",
        ),
        ("{% for x in [] %}{% else %}none{% endfor %}", "none"),
        ("{% macro m(a, b='x') %}{{ a }}{{ b }}{{ caller() }}{% endmacro %}{% call m(1) %}c{% endcall %}", "1xc"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x ~ x }}", "a1a1"),
        ("{% set ns = namespace(n=0) %}{% for i in 'abc' %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "3"),
        ("{% filter upper %}a{{ 'b' }}{% endfilter %}", "AB"),
        ("{% generation %}a{% endgeneration %}", "a"),
        ("    {% if true %}\n  a\n    {% endif %}\nb", "  a\nb"),  # trim_blocks and lstrip_blocks
        ("{{ strftime_now('%Y-%m-%d') }}", "2023-11-14"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | first }}", "hello"),
        ("{{ 'x' if tools is defined and tools is not none and messages[0] is mapping }}", "x"),
        ("{{ ' a ' | trim }}{{ 'a.b'.split('.')[-1] }}{{ 'abc'[1:] }}{{ 'b' in 'abc' }}", "abbcTrue"),
        ("{{ '{}-{x}'.format(1, x='y') }}{{ 'x' | safe }}{{ [3, 1] | sort }}", "1-yx[1, 3]"),
        ("{{ bos_token }}{{ eos_token }}", "<|im_start|><|im_end|>"),
    ],
)
def test_what_templates_need_works(source, expected):
    assert render(source) == expected
