"""Tool calls in growing text: whatever the pieces, the same calls, and never half of one as text."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.text.tool_calls import ToolCallReader, WrittenCall

NAMES = ("weather", "search")
CALL = '{"name": "weather", "arguments": {"city": "Riga"}}'
LLAMA = '{"name": "weather", "parameters": {"city": "Riga"}}'
RIGA = WrittenCall("weather", '{"city": "Riga"}')
EMPTY = WrittenCall("search", "{}")


def read(text: str, *cuts: int, names=NAMES) -> list[str | WrittenCall]:
    """The whole answer, pushed in pieces that end at `cuts`, texts joined."""
    reader, found, at = ToolCallReader(names), [], 0
    for cut in (*sorted(cuts), len(text)):
        found += reader.push(text[at:cut])
        at = cut
    found += reader.finish()
    joined: list[str | WrittenCall] = []
    for piece in found:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


CASES = [
    ("no call at all", ["no call at all"]),
    ("", []),
    # Hermes and Qwen
    (f"<tool_call>\n{CALL}\n</tool_call>", [RIGA]),
    (f"Let me see. <tool_call>{CALL}</tool_call>", ["Let me see. ", RIGA]),
    (f"<tool_call>{CALL}</tool_call>\n<tool_call>\n{{\"name\": \"search\"}}\n</tool_call>", [RIGA, EMPTY]),
    (f"<tool_call>{CALL}</tool_call> and then text", [RIGA, " and then text"]),
    (f"<tool_call>{CALL}", [RIGA]),  # the closing tag was left out
    ('<tool_call>{"name": "search", "arguments": {"q": "</tool_call> \\" }"}}</tool_call>',
     [WrittenCall("search", json.dumps({"q": '</tool_call> " }'}))]),
    ('<tool_call>{"name": "search", "arguments": "{\\"q\\": 1}"}</tool_call>', [WrittenCall("search", '{"q": 1}')]),
    # Mistral
    (f"[TOOL_CALLS][{CALL}]", [RIGA]),
    (f'[TOOL_CALLS] [{CALL}, {{"name": "search", "arguments": {{}}, "id": "abc123def"}}]', [RIGA, EMPTY]),
    (f"[{CALL}]", [RIGA]),  # the mark is a special token and does not show
    # Llama 3
    (LLAMA, [RIGA]),
    (f"<|python_tag|>{LLAMA}", [RIGA]),
    (f'\n{LLAMA}; {{"name": "search", "parameters": {{}}}}\n', [RIGA, EMPTY]),
    (f"\n\n<tool_call>{CALL}</tool_call>\n", [RIGA]),
    ("\n \n", ["\n \n"]),
    (f'{{"type": "function", "function": {LLAMA}}}', [RIGA]),
    # None of these is a call: they stay what they are
    ("<tool_call>not json</tool_call>", ["<tool_call>not json</tool_call>"]),
    *((text, [text]) for text in (
        '<tool_call>{"name": "weather", "arguments": {"city": "Ri',
        '<tool_call>{"name": "weather", "arguments": 5}</tool_call>',
    )),
    ('<tool_call>{"name": "unheard_of"}</tool_call>', ['<tool_call>{"name": "unheard_of"}</tool_call>']),
    ('<tool_call>{"name": "weather",}</tool_call>', ['<tool_call>{"name": "weather",}</tool_call>']),
    (f"<tool_call>{CALL} oops</tool_call>", [f"<tool_call>{CALL} oops</tool_call>"]),
    ('{"answer": 42}', ['{"answer": 42}']),
    ('{"name": "Ada", "born": 1815}', ['{"name": "Ada", "born": 1815}']),
    (f"The call is {CALL}.", [f"The call is {CALL}."]),
    (f'[{CALL}, {{"name": "unheard_of"}}]', [f'[{CALL}, {{"name": "unheard_of"}}]']),
    ("[1, 2, 3]", ["[1, 2, 3]"]),
    ("a < b and [TOOL", ["a < b and [TOOL"]),
    ("<tool_call><tool_call>" + CALL + "</tool_call>", ["<tool_call>", RIGA]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_notations(text, expected):
    assert read(text) == expected


@settings(max_examples=400, deadline=None)
@given(st.sampled_from([text for text, _ in CASES]), st.data())
def test_the_cut_into_pieces_does_not_matter(text, data):
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    assert read(text, *cuts) == read(text)
    assert read(text, *range(len(text))) == read(text)


@given(st.text(alphabet='<tool_cal>/{}[]"\\ nmewthr:,TOLCS_|py', max_size=60), st.data())
def test_text_without_calls_comes_through_unchanged(text, data):
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    pieces = read(text, *cuts)
    if all(isinstance(piece, str) for piece in pieces):
        assert "".join(pieces) == text  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [case[0] for case in CASES if any(isinstance(p, WrittenCall) for p in case[1])])
def test_no_half_of_a_call_ever_shows(text):
    reader, shown = ToolCallReader(NAMES), ""
    for character in text:
        for piece in reader.push(character):
            shown += piece if isinstance(piece, str) else ""
    assert '"name"' not in shown
    assert "TOOL_CALLS" not in shown
    assert "python_tag" not in shown


def test_text_before_a_call_is_not_held_back():
    reader = ToolCallReader(NAMES)
    assert reader.push("Let me look that up. ") == ["Let me look that up. "]
    assert reader.push("a < b <to") == ["a < b "]
    assert reader.push("ast>") == ["<toast>"]


def test_a_json_answer_is_held_only_until_its_first_key():
    reader = ToolCallReader(NAMES)
    assert reader.push('{"ans') == []
    assert reader.push('wer": ') == ['{"answer": ']
    assert reader.push("42}") == ["42}"]


def test_without_tools_everything_is_text():
    text = f"<tool_call>{CALL}</tool_call>"
    assert ToolCallReader(()).push(text) == [text]


def test_long_arguments_take_linear_time():
    """A call of 300 kB in pieces of three letters: each letter is looked at once."""
    text = '<tool_call>{"name": "search", "arguments": {"q": "' + "x{\\n" * 100_000 + '"}}</tool_call>'
    reader, found = ToolCallReader(NAMES), []
    begun = time.perf_counter()
    for at in range(0, len(text), 40):
        found += reader.push(text[at : at + 40])
    assert [type(piece) for piece in found] == [WrittenCall]
    assert time.perf_counter() - begun < 5
