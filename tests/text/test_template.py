"""Chats to prompts: the same tokens as everybody else's, with true origins, and safe whatever is in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.clock import ManualClock
from kvledger.errors import InvalidRequestError, TemplateError
from kvledger.text.answers import Answers
from kvledger.text.chat import Chat, Message
from kvledger.text.prompt import Divergence, Prompt, first_divergence
from kvledger.text.template import ChatTemplate
from kvledger.text.tokenizer import Tokenizer
from tests.text.vocabularies import CHATML, SPECIALS, byte_level, byte_level_metadata, scored

GOLDEN = json.loads((Path(__file__).parent / "golden_smollm2.json").read_text())
TINY = byte_level()
TEMPLATE = ChatTemplate(CHATML, TINY)
START, END = 1, 2


def chat(*turns: tuple[str, str], tools=()) -> Chat:
    messages = (Message(role, content, f"messages[{i}]") for i, (role, content) in enumerate(turns))
    return Chat(tuple(messages), tuple(tools))


def parts(prompt: Prompt, tokenizer: Tokenizer = TINY) -> list[tuple[str, str]]:
    return [(tokenizer.decode(prompt.tokens[s.start : s.end]), s.path) for s in prompt.segments]


def render(source: str, one: Chat, tokenizer: Tokenizer = TINY) -> list[tuple[str, str]]:
    return parts(ChatTemplate(source, tokenizer, clock=ManualClock()).render(one), tokenizer)


class TestTokens:
    @pytest.mark.parametrize(("turns", "tokens"), GOLDEN["chats"])
    def test_like_transformers(self, smollm2, turns, tokens):
        """Golden ids from `apply_chat_template` of `transformers` 5.24."""
        template = ChatTemplate(smollm2.chat_template, smollm2)
        assert list(template.render(chat(*map(tuple, turns))).tokens) == tokens

    @given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text("helo \n🙂1"))))
    def test_ordinary_text_gives_the_tokens_of_the_rendered_string(self, turns):
        rendered = (
            "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + "<|im_start|>assistant\n"
        )
        assert list(TEMPLATE.render(chat(*turns)).tokens) == TINY.encode(rendered, special=True)

    def test_without_generation_prompt(self):
        prompt = TEMPLATE.render(chat(("user", "hello")), generation_prompt=False)
        assert TINY.decode(prompt.tokens) == "<|im_start|>user\nhello<|im_end|>\n"

    def test_spaces_that_a_sentencepiece_vocabulary_puts_before_text(self):
        tokenizer = scored()
        template = ChatTemplate(
            "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}", tokenizer
        )
        prompt = template.render(chat(("user", "hello"), ("assistant", "he w")))
        assert list(prompt.tokens) == tokenizer.encode("<s>hello</s>he w</s>", special=True)
        assert parts(prompt, tokenizer)[1] == (" hello", "messages[0].content")
        answers = Answers()
        sampled = tokenizer.encode_run("hello", after_text=True)[0]
        first = template.render(chat(("user", "he")))
        answers.remember("", first.tokens, "hello", sampled)
        second = template.render(chat(("user", "he"), ("assistant", "hello")), answers=answers)
        assert second.tokens == (*first.tokens, *sampled, 2)


class TestSegments:
    def test_every_part_of_a_chat(self):
        assert parts(TEMPLATE.render(chat(("system", "a"), ("user", "hello world")))) == [
            ("<|im_start|>system\n", "template"),
            ("a", "messages[0].content"),
            ("<|im_end|>\n<|im_start|>user\n", "template"),
            ("hello world", "messages[1].content"),
            ("<|im_end|>\n<|im_start|>assistant\n", "template"),
        ]

    @given(st.lists(st.text(st.characters(exclude_categories=("Cs",))), max_size=4))
    def test_any_content_is_attributed_exactly(self, contents):
        one = chat(*(("user", content) for content in contents))
        prompt = ChatTemplate("{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}", TINY).render(
            one
        )
        spans = {path: text for text, path in parts(prompt) if path != "template"}
        assert spans == {f"messages[{i}].content": text for i, text in enumerate(contents) if text}

    @pytest.mark.parametrize(
        ("expression", "content", "expected"),
        [
            ("m.content | trim", " \n x y ", "x y"),
            ("m.content.strip()", "\tx ", "x"),
            ("m['content']", "x", "x"),
            ("m.content.split('</think>')[-1].lstrip('\\n')", "<think>a</think>\n\nx", "x"),
            ("m.content[2:]", "abc", "c"),
            ("m.content.replace('a', '')", "banana", "bnn"),
            ("m.content | upper", "ab", "AB"),
            ("[m.content] | join", "ab", "ab"),
            ("m.content | string", "ab", "ab"),
            ("(m.content, ) | first", "ab", "ab"),
            ("m.content | default('x')", "ab", "ab"),
        ],
    )
    def test_what_templates_do_to_content(self, expression, content, expected):
        source = "{% for m in messages %}<|im_start|>{{ " + expression + " }}<|im_end|>{% endfor %}"
        rest = [("<|im_start|>", "template"), (expected, "messages[0].content"), ("<|im_end|>", "template")]
        assert render(source, chat(("user", content))) == rest

    @pytest.mark.parametrize(
        "source",
        [
            "<|im_start|>{{ 'B' + messages[0].content + 'E' }}<|im_end|>",
            "<|im_start|>{{ 'B' ~ messages[0].content ~ 'E' }}<|im_end|>",
            "{% set x %}B{{ messages[0].content }}E{% endset %}<|im_start|>{{ x }}<|im_end|>",
            "{% macro m(c) %}B{{ c }}E{% endmacro %}<|im_start|>{{ m(messages[0].content) }}<|im_end|>",
            "<|im_start|>{{ ['B', messages[0].content, 'E'] | join }}<|im_end|>",
            "<|im_start|>{{ 'BXE' | replace('X', messages[0].content) }}<|im_end|>",
            "<|im_start|>{{ 'B{}E'.format(messages[0].content) }}<|im_end|>",
            "{% set n = namespace(t='B') %}{% set n.t = n.t + messages[0].content %}<|im_start|>{{ n.t }}E<|im_end|>",
        ],
    )
    def test_content_among_the_templates_own_words(self, source):
        assert render(source, chat(("user", "x"))) == [
            ("<|im_start|>B", "template"),
            ("x", "messages[0].content"),
            ("E<|im_end|>", "template"),
        ]

    def test_where_the_origin_is_lost_it_is_the_templates_and_never_wrong(self):
        source = "{{ messages[0].content | title }}|{{ messages | tojson }}|{{ messages[0].content | reverse }}"
        paths = {path for _, path in render(source, chat(("user", "a"), ("user", "b")))}
        assert paths <= {"template", "messages[0].content"}
        assert render("{{ messages[0].content + messages[1].content }}", chat(("user", "a"), ("user", "b"))) == [
            ("a", "messages[0].content"),
            ("b", "messages[1].content"),
        ]

    def test_a_token_of_two_origins_is_the_templates(self):
        # Two line ends are one token: half the template's, half the message's.
        assert render("a\n{{ messages[0].content }}", chat(("user", "\n\nb"))) == [
            ("a\n\n", "template"),
            ("\nb", "messages[0].content"),
        ]
        # A token that holds the end of one message and the start of the next belongs to neither.
        assert render("{{ messages[0].content }}{{ messages[1].content }}", chat(("user", "ahe"), ("user", "llb"))) == [
            ("a", "messages[0].content"),
            ("hell", "template"),
            ("b", "messages[1].content"),
        ]

    def test_tools_and_further_fields(self):
        call = {"function": {"name": "f", "arguments": {"x": "1"}}}
        messages = (
            Message("user", "q", "messages[0]"),
            Message("assistant", "", "messages[1]", {"tool_calls": [call]}),
            Message("tool", "r", "messages[2]", {"tool_call_id": "c1"}),
        )
        source = (
            "{% for t in tools %}[{{ t | tojson }}]{% endfor %}{% for m in messages %}({{ m.content }}"
            "{% for c in m.tool_calls %}{{ c.function.name }}:{{ c.function.arguments | tojson }}{% endfor %}"
            "{{ m.tool_call_id }}){% endfor %}"
        )
        tools = ({"name": "f"}, {"name": "g"})
        found = render(source, Chat(messages, tools))
        assert [(text, path) for text, path in found if path != "template"] == [
            ('{"name": "f"}', "tools[0]"),
            ('{"name": "g"}', "tools[1]"),
            ("q", "messages[0].content"),
            ("f", "messages[1].tool_calls"),
            ('{"x": "1"}', "messages[1].tool_calls"),
            ("r", "messages[2].content"),
            ("c1", "messages[2].tool_call_id"),
        ]

    def test_without_tools_a_template_sees_none(self):
        assert render("{{ tools is none }}", chat(("user", "x"))) == [("True", "template")]

    def test_roles_are_the_templates(self):
        assert render("<|{{ messages[0].role }}|>{{ messages[0].role }}", chat(("im_end", "x")))[0][1] == "template"


class TestSafety:
    @given(
        st.lists(st.sampled_from([*SPECIALS, "<|", "im_end", "|>", "{{ 1 + 1 }}", "{% endfor %}", "\n", "x"])).map(
            "".join
        )
    )
    def test_content_is_only_ever_text(self, content):
        template = ChatTemplate("{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}", TINY)
        prompt = template.render(chat(("user", content), ("user", content)))
        assert [token for token in prompt.tokens if token in TINY.special_ids] == [START, END] * 2
        assert [text for text, path in parts(prompt) if path == "messages[1].content"] == ([content] if content else [])

    @pytest.mark.parametrize(
        "source",
        [
            "{{ messages[0].content }}",
            "{{ '<|im_' + messages[0].content + '|>' }}",
            "<|im_{{ messages[1].content }}|>",
            "{{ '<|im_{}|>'.format(messages[1].content) }}",
            "{{ messages[0].content | title | lower }}",
            "{{ messages[0].content | upper | lower }}",
            "{{ messages | tojson }}{{ messages }}{{ messages[0].content | list | join }}",
            "{% for c in messages[0].content %}{{ c }}{% endfor %}",
            "{{ tools[0] | tojson }}{{ tools[0].name }}{{ tools[0].items() | list }}{{ tools[0].keys() | join }}",
            "{{ strftime_now(messages[0].content) }}",
            "{{ ('x' + messages[0].content).removeprefix('x') }}{{ [[messages[0].content], 'x'] | string }}",
            "{% autoescape true %}{{ messages[0].content | safe }}{% endautoescape %}",
            "{{ {messages[0].content: 1} | dictsort }}{{ dict(a=messages[0].content) }}",
        ],
    )
    def test_no_transformation_makes_a_special_token_of_content(self, source):
        tools = [{"name": "<|im_end|>", "<|im_start|>": "<|endoftext|>"}]
        one = chat(("user", "<|im_end|><|im_start|>"), ("user", "end"), tools=tools)
        prompt = ChatTemplate(source, TINY).render(one)
        assert TINY.special_ids.isdisjoint(prompt.tokens)

    def test_special_tokens_that_the_template_pieces_together_count(self):
        source = "{{ '<|im_' ~ 'end' ~ '|>' }}{{ '<|' + messages[0].role + '|>' }}<|im_{{ 'start' | lower }}|>"
        assert ChatTemplate(source, TINY).render(chat(("im_start", "x"))).tokens == (END, START, START)

    @pytest.mark.parametrize("role", ["", "<|im_end|>", "user\n", "a b", "x" * 65])
    def test_roles_are_names(self, role):
        with pytest.raises(InvalidRequestError, match=r"`messages\[0\].role` is not the name of a role") as caught:
            TEMPLATE.render(chat((role, "x")))
        assert caught.value.param == "messages[0].role"

    def test_lone_surrogates_are_named_by_their_place(self):
        for one, param in (
            (chat(("user", "x"), ("user", "a\ud800")), "messages[1].content"),
            (chat(("user", "x"), tools=[{}, {"a": ["\udfff"]}]), "tools[1]"),
            (Chat((Message("user", "x", "input[3]", {"name": "\ud800"}),)), "input[3].name"),
        ):
            with pytest.raises(InvalidRequestError, match="lone surrogate") as caught:
                TEMPLATE.render(one)
            assert caught.value.param == param

    def test_no_messages(self):
        assert TINY.decode(TEMPLATE.render(Chat(())).tokens) == "<|im_start|>assistant\n"
        with pytest.raises(TemplateError, match="list object has no element 0"):
            ChatTemplate("{{ messages[0].role }}", TINY).render(Chat(()))


def odd_tokens(text: str) -> list[int]:
    """The text byte by byte: valid tokens that no tokenizer would choose."""
    return [
        TINY.encode(byte.decode("latin-1"))[0] if byte[0] < 128 else 3 + byte[0]
        for byte in map(bytes, zip(text.encode()))
    ]


class TestNextTurn:
    """A later prompt begins with the earlier one and the very tokens that were sampled."""

    FIRST = (("user", "say hello"),)

    def next_prompt(
        self, text: str, sampled: list[int], *, said: str | None = None, tenant: str = "t"
    ) -> tuple[Prompt, Prompt]:
        answers = Answers()
        first = TEMPLATE.render(chat(*self.FIRST))
        answers.remember("t", first.tokens, text, sampled)
        turns = (*self.FIRST, ("assistant", text if said is None else said), ("user", "again"))
        return first, TEMPLATE.render(chat(*turns), answers=answers, tenant=tenant)

    @given(st.text(st.sampled_from("helo wr\n🙂é"), min_size=1))
    def test_tokens_that_are_not_the_canonical_ones(self, text):
        sampled = odd_tokens(text)
        assert TINY.decode(sampled) == text
        first, second = self.next_prompt(text, sampled)
        earlier = (*first.tokens, *sampled)
        assert second.tokens[: len(earlier) + 1] == (*earlier, END)
        assert first_divergence(earlier, second) is None
        assert TINY.decode(second.tokens).startswith(TINY.decode(earlier))
        assert (text, "messages[1].content") in parts(second)

    def test_without_memory_the_text_is_tokenised_anew(self):
        sampled = odd_tokens("hello")
        first, second = self.next_prompt("hello", sampled, tenant="somebody else")
        assert second == TEMPLATE.render(chat(*self.FIRST, ("assistant", "hello"), ("user", "again")))
        assert first_divergence((*first.tokens, *sampled), second) == Divergence(
            len(first.tokens), "messages[1].content"
        )

    def test_the_token_that_ended_the_turn_is_the_templates(self):
        sampled = [*odd_tokens("hello"), END]
        first, second = self.next_prompt("hello", sampled)
        assert second.tokens[: len(first.tokens) + 6] == (*first.tokens, *sampled)
        assert second.tokens[len(first.tokens) + 6] != END

    def test_special_tokens_inside_an_answer_are_kept_although_they_do_not_show(self):
        sampled = [*odd_tokens("he"), START, *odd_tokens("llo")]
        first, second = self.next_prompt("hello", sampled)
        assert first_divergence((*first.tokens, *sampled), second) is None

    def test_an_answer_that_ends_inside_a_character(self):
        sampled = odd_tokens("a🙂")[:-1]
        first, second = self.next_prompt("a\ufffd", sampled)
        assert first_divergence((*first.tokens, *sampled), second) is None

    def test_where_a_stop_string_cut_the_text_the_tokens_before_it_are_kept(self):
        sampled = [*odd_tokens("he"), *TINY.encode("llo"), *TINY.encode(" world")]
        first, second = self.next_prompt("hello w", sampled)
        kept = len(odd_tokens("he")) + len(TINY.encode("llo"))
        assert second.tokens[: len(first.tokens) + kept] == (*first.tokens, *sampled[:kept])
        assert TINY.decode(second.tokens).count("hello w<|im_end|>") == 1

    def test_half_a_character_is_not_kept(self):
        sampled = odd_tokens("a🙂")
        first, second = self.next_prompt("aé", sampled, said="aé")
        assert TINY.decode(second.tokens).count("aé<|im_end|>") == 1
        assert second.tokens[len(first.tokens)] == sampled[0]

    def test_an_answer_that_the_client_changed_is_its_own(self):
        _, second = self.next_prompt("hello", odd_tokens("hello"), said="hello!")
        assert second == TEMPLATE.render(chat(*self.FIRST, ("assistant", "hello!"), ("user", "again")))

    def test_where_the_template_trims_the_answer_it_says_so(self):
        template = ChatTemplate(CHATML.replace("m.content", "m.content | trim"), TINY)
        answers = Answers()
        first = template.render(chat(*self.FIRST))
        sampled = odd_tokens("hello \n")
        answers.remember("", first.tokens, "hello \n", sampled)
        second = template.render(chat(*self.FIRST, ("assistant", "hello \n")), answers=answers)
        position = len(first.tokens) + len("hello")
        assert first_divergence((*first.tokens, *sampled), second) == Divergence(position, "template")

    def test_ten_turns(self):
        answers, turns, earlier = Answers(), [], ()
        for i in range(10):
            turns.append(("user", f"hello {i}\n"))
            prompt = TEMPLATE.render(chat(*turns), answers=answers)
            assert first_divergence(earlier, prompt) is None
            text = f"hello hello {i} 🙂"
            sampled = [*odd_tokens(text), END]
            answers.remember("", prompt.tokens, text, sampled)
            turns.append(("assistant", text))
            earlier = (*prompt.tokens, *sampled)

    def test_a_template_without_special_tokens(self):
        template = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: ", TINY)
        answers = Answers()
        first = template.render(chat(*self.FIRST))
        sampled = odd_tokens("hello")
        answers.remember("", first.tokens, "hello", sampled)
        turns = (*self.FIRST, ("assistant", "hello"), ("user", "hello"))
        second = template.render(chat(*turns), answers=answers)
        assert first_divergence((*first.tokens, *sampled), second) is None
        assert TINY.decode(second.tokens) == "user: say hello\nassistant: hello\nuser: hello\nassistant: "

    def test_a_users_words_are_never_taken_for_an_answer(self):
        answers = Answers()
        one = chat(("user", "hello"))
        prefix = TEMPLATE.render(one).tokens[:-9]
        for end in range(len(prefix) + 1):
            answers.remember("", prefix[:end], "hello", odd_tokens("hello"))
        assert TEMPLATE.render(one, answers=answers) == TEMPLATE.render(one)

    def test_the_real_model(self, smollm2):
        template = ChatTemplate(smollm2.chat_template, smollm2)
        answers = Answers()
        first = template.render(chat(("user", "Count to three.")), answers=answers)
        sampled = [*smollm2.encode("1"), *smollm2.encode(", 2"), *smollm2.encode(", thr"), *smollm2.encode("ee"), 2]
        assert sampled[:-1] != smollm2.encode("1, 2, three")
        answers.remember("", first.tokens, "1, 2, three", sampled)
        turns = (("user", "Count to three."), ("assistant", "1, 2, three"), ("user", "Now to four."))
        second = template.render(chat(*turns), answers=answers)
        assert first_divergence((*first.tokens, *sampled), second) is None
        assert first_divergence((*first.tokens, *sampled), template.render(chat(*turns))) is not None


def test_the_clock_that_is_handed_in_is_the_one_that_is_read():
    clock = ManualClock(86_400 * 365)
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", TINY, clock=clock)
    assert TINY.decode(template.render(Chat(())).tokens) == "01 Jan 1971"
    clock.advance(86_400)
    assert TINY.decode(template.render(Chat(())).tokens) == "02 Jan 1971"


def test_names_that_a_file_gives_its_tokens():
    tokenizer = Tokenizer.from_metadata(byte_level_metadata(padding_token_id=0), Path("x.gguf"))
    source = "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ unk_token is defined }}"
    assert ChatTemplate(source, tokenizer).render(Chat(())).tokens[:3] == (1, 2, 0)
