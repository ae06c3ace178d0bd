from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from kvledger.errors import SimulationError, TraceError
from kvledger.sim.curve import Curve
from kvledger.sim.reading import read_trace
from kvledger.sim.score import Ratio, Window
from kvledger.sim.simulate import Setup, simulate
from kvledger.sim.trace import Trace
from tests.sim.traces import mooncake, write_lines


def whole(trace: Trace) -> Window:
    return Curve.of(trace).at(None).whole


def requests_of(trace: Trace) -> list[list[int]]:
    return [trace.nodes[start:end].tolist() for start, end in zip(trace.starts, trace.ends, strict=True)]


# -- Mooncake ---------------------------------------------------------------------------------------------------------

MOONCAKE = [
    mooncake(0, 1100, [0, 1, 2]),
    mooncake(1000, 1536, [0, 1, 3]),
    mooncake(3000, 1100, [0, 1, 2]),
    mooncake(3000, 300, [4]),
]


def test_mooncake(tmp_path):
    trace = read_trace(write_lines(tmp_path / "t.jsonl", MOONCAKE))
    assert (trace.format, trace.block_size, trace.notes) == ("mooncake", 512, ())
    assert trace.sizes.tolist() == [512, 512, 76, 512, 512, 512, 512, 512, 76, 300]
    assert trace.times.tolist() == [0, 1, 3, 3]
    assert whole(trace).block == Ratio(5, 10)
    assert whole(trace).full_block == Ratio(4, 7)
    assert whole(trace).token == Ratio(4 * 512 + 76, 1100 + 1536 + 1100 + 300)
    last_half = Curve.of(trace).at(None).last_half
    assert last_half.block == Ratio(3, 4)
    assert last_half.token == Ratio(1100, 1400)


def test_compressed(tmp_path):
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(write_lines(tmp_path / "t.jsonl", MOONCAKE).read_bytes()))
    assert whole(read_trace(path)).block == Ratio(5, 10)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(TraceError, match="gzip data cannot be read to the end"):
        read_trace(path)


def test_a_stated_block_size_counts(tmp_path):
    path = write_lines(tmp_path / "t", [mooncake(0, 100, [1, 2], block_size=64), mooncake(0, 64, [1], block_size=128)])
    trace = read_trace(path)
    assert trace.block_size == 64
    assert trace.sizes.tolist() == [64, 36]
    assert "block_size is 128, where other lines have 64" in trace.notes[0]


def test_ids_of_other_kinds(tmp_path):
    path = write_lines(tmp_path / "t", [mooncake(0, 1024, ["ab", 1 << 64]), mooncake(9000, 1536, ["ab", 1 << 64, "1"])])
    assert requests_of(read_trace(path)) == [[0, 1], [0, 1, 2]]


def test_fewer_and_more_ids_than_tokens(tmp_path):
    trace = read_trace(write_lines(tmp_path / "t", [mooncake(0, 2000, [1, 2]), mooncake(9000, 600, [1, 2, 3, 4])]))
    assert trace.sizes.tolist() == [512, 512, 512, 88, 0, 0]
    assert whole(trace).token == Ratio(600, 2600)
    assert "1 of 2 requests list fewer hash_ids" in trace.notes[0]
    assert "1 of 2 requests list more hash_ids" in trace.notes[1]
    assert all("--block-size" in note for note in trace.notes)


# -- times ------------------------------------------------------------------------------------------------------------


def test_times_out_of_order(tmp_path):
    path = write_lines(
        tmp_path / "t", [mooncake(5000, 512, [3]), mooncake(9000, 1024, [1, 2]), mooncake(1000, 600, [1, 5])]
    )
    trace = read_trace(path)
    assert trace.times.tolist() == [1, 5, 9]
    assert trace.sizes.tolist() == [512, 88, 512, 512, 512]
    assert [len(request) for request in requests_of(trace)] == [2, 1, 2]
    assert whole(trace).block == Ratio(1, 5)
    assert trace.notes == ("The times are not in order (1 request is earlier than the one before): replayed by time.",)


def test_seconds_where_milliseconds_belong(tmp_path):
    path = write_lines(tmp_path / "t", [mooncake(i * 0.3, 512, [i]) for i in range(50)])
    trace = read_trace(path)
    assert "look like seconds, where the mooncake format has milliseconds" in trace.notes[0]
    assert "--time-unit s" in trace.notes[0]
    with pytest.raises(SimulationError, match="times that can be relied on"):
        simulate(trace, Setup(ttl=10.0))
    sure = read_trace(path, time_unit=1.0)
    assert sure.notes == ()
    assert sure.times[-1] == pytest.approx(49 * 0.3)
    simulate(sure, Setup(ttl=10.0))


def bailian(chat: int, parent: int, time: float, tokens: int, ids: list[int]) -> dict:
    return {
        "chat_id": chat, "parent_chat_id": parent, "timestamp": time, "input_length": tokens, "output_length": 9,
        "type": "text", "turn": 1, "hash_ids": ids,
    }  # fmt: skip


def test_milliseconds_where_seconds_belong(tmp_path):
    path = write_lines(tmp_path / "t", [bailian(i, -1, i * 170.0, 16, [i]) for i in range(50)])
    assert "look like milliseconds, where the bailian format has seconds" in read_trace(path).notes[0]


def test_no_times(tmp_path):
    trace = read_trace(write_lines(tmp_path / "t", [{"tokens": [1, 2]}, {"tokens": [1, 2]}]))
    assert trace.notes == ()
    with pytest.raises(SimulationError, match="The trace has no times"):
        simulate(trace, Setup(ttl=10.0))


# -- the others -------------------------------------------------------------------------------------------------------


def test_bailian(tmp_path):
    path = write_lines(
        tmp_path / "t",
        [
            bailian(7, -1, 0.5, 40, [1, 2, 3]),
            bailian(8, -1, 1.0, 16, [2]),
            bailian(9, 7, 2.25, 60, [1, 2, 4, 5]),
            bailian(10, 9, 3.0, 48, [1, 2, 4]),
        ],
    )
    trace = read_trace(path)
    assert (trace.format, trace.block_size) == ("bailian", 16)
    assert trace.sessions is not None
    assert trace.sessions.tolist() == [7, 8, 7, 7]
    assert whole(trace).block == Ratio(5, 11)  # block 2 at the start of a prompt is not block 2 after 1
    assert whole(trace).token == Ratio(80, 164)


def session(requests: list[dict], **others) -> dict:
    return {"id": "trace_1", "block_size": 64, "hash_id_scope": "local", "requests": requests, **others}


def call(time: float, tokens: int, ids: list[int], kind: str = "s") -> dict:
    return {"t": time, "type": kind, "in": tokens, "out": 1, "hash_ids": ids}


SUBAGENT = [
    call(0.0, 140, [1, 2]),
    {"t": 5.0, "type": "subagent", "requests": [call(0.0, 70, [1]), call(4.0, 140, [1, 9], "n")]},
    call(7.0, 200, [1, 2, 3]),
]


def test_kv_cache_tester(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(session(SUBAGENT), indent=2))
    (tmp_path / "b.json").write_text(json.dumps(session([call(1.0, 128, [1, 2])])))
    trace = read_trace(tmp_path)
    assert (trace.format, trace.block_size) == ("kv-cache-tester", 64)
    assert trace.times.tolist() == [0, 1, 5, 7, 9]  # the subagent's clock starts with it
    assert trace.input_tokens.tolist() == [140, 128, 70, 200, 140]
    assert whole(trace).block == Ratio(1 + 2 + 1, 10)  # nothing from the other session
    assert whole(trace).token == Ratio(4 * 64, 678)  # tokens after the last full block never hit
    assert trace.sessions is not None
    assert trace.sessions.tolist() == [0, 1, 0, 0, 0]
    assert trace.notes == ("Every session of the trace starts at time 0: they run side by side.",)


def test_kv_cache_tester_in_lines_with_the_clock_of_the_session(tmp_path):
    absolute = [*SUBAGENT[:1], {**SUBAGENT[1], "requests": [call(5.0, 70, [1]), call(9.0, 140, [1, 9])]}, SUBAGENT[2]]
    trace = read_trace(write_lines(tmp_path / "t.jsonl", [session(absolute), session([call(1.0, 128, [1, 2])])]))
    assert trace.times.tolist() == [0, 1, 5, 7, 9]


def test_kv_cache_tester_with_global_ids(tmp_path):
    shared = [session([call(0.0, 128, [1, 2])], hash_id_scope="global"), session([call(1.0, 64, [1])])]
    shared[1]["hash_id_scope"] = "global"
    assert whole(read_trace(write_lines(tmp_path / "t", shared))).block == Ratio(1, 3)


def ragpulse(time: str, tokens: int, system: list[int], passages: list[int], user: list[int]) -> dict:
    ids = {"sys_prompt": system, "passages_ids": passages, "history": [], "web_search": [], "user_input": user}
    return {"timestamp": time, "input_length": tokens, "output_length": 5, "hash_ids": ids, "session_id": f"s{time}"}


RAGPULSE = [ragpulse("0", 700, [1, 2], [5], [7]), ragpulse("9", 720, [1, 2], [6], [7]), ragpulse("12", 3, [1], [], [])]
LENGTHS = {
    "1_sys_prompt.jsonl": [{"sys_prompt_id": 1, "token_length": 512}, {"sys_prompt_id": 2, "token_length": 100}],
    "2_passages.jsonl": [{"passages_id": 5, "token_length": 60}, {"passages_id": 6, "token_length": 80}],
    "4_user_input.jsonl": [{"user_input_id": 7, "token_length": 28}],
}


def test_ragpulse(tmp_path):
    write_lines(tmp_path / "0_trace.jsonl", RAGPULSE)
    for name, lines in LENGTHS.items():
        write_lines(tmp_path / name, lines)
    trace = read_trace(tmp_path)
    assert (trace.format, trace.block_size, trace.notes) == ("ragpulse", 512, ())
    assert trace.sizes.tolist() == [512, 100, 60, 28, 512, 100, 80, 28, 512]
    assert whole(trace).block == Ratio(3, 9)
    assert whole(trace).full_block == Ratio(2, 3)
    assert whole(trace).token == Ratio(512 + 100 + 512, 700 + 720 + 512)
    cut = read_trace(tmp_path, block_size=100)
    assert cut.lengths.tolist() == [7, 8, 6]
    assert whole(cut).token == Ratio(600 + 500, 700 + 720 + 512)  # a block that is equal in part does not hit


def test_ragpulse_without_lengths(tmp_path):
    trace = read_trace(write_lines(tmp_path / "t.jsonl", RAGPULSE[:2]))
    assert trace.sizes.tolist() == [175] * 4 + [180] * 4
    assert whole(trace).block == Ratio(2, 8)
    assert "figures by token are estimates" in trace.notes[0]


def test_events(tmp_path):
    path = write_lines(
        tmp_path / "t",
        [
            {"number": 1, "event": "stored", "parent": "root", "digests": ["a", "b"]},
            {"number": 2, "event": "stored", "parent": "a", "digests": ["c"]},
            {"number": 3, "event": "removed", "digests": ["b"], "reason": "evicted"},
            {"number": 4, "event": "cleared"},
            {"number": 7, "event": "stored", "parent": "a", "digests": ["b"]},
        ],
    )
    trace = read_trace(path, block_size=8)
    assert (trace.format, trace.block_size) == ("kvledger-events", 8)
    assert requests_of(trace) == [[0, 1], [0, 2], [0, 1]]
    assert whole(trace).block == Ratio(1 + 2, 6)
    assert "after number 4 and before number 7 are missing" in trace.notes[1]


def test_events_in_a_circle(tmp_path):
    lines = [
        {"number": 1, "event": "stored", "parent": "a", "digests": ["b"]},
        {"number": 2, "event": "stored", "parent": "b", "digests": ["a"]},
    ]
    trace = read_trace(write_lines(tmp_path / "t", lines))
    assert trace.skipped[0].why == "the digests go in a circle"


def test_logs_of_tokens(tmp_path):
    path = write_lines(
        tmp_path / "t",
        [
            {"timestamp": 1760000000, "tokens": [1, 2, 3, 4, 5], "session_id": "x"},
            {"timestamp": 1760000001.5, "tokens": [1, 2, 3, 4, 6, 7], "session_id": "y"},
            {"timestamp": 1760000002, "tokens": [1, 2, 3, 4, 6, 7], "session_id": "x"},
        ],
    )
    trace = read_trace(path, block_size=2)
    assert trace.format == "request-log"
    assert trace.sizes.tolist() == [2, 2, 1, 2, 2, 2, 2, 2, 2]
    assert whole(trace).token == Ratio(4 + 6, 17)
    assert trace.sessions is not None
    assert trace.sessions[0] == trace.sessions[2] != trace.sessions[1]
    assert np.diff(trace.times).tolist() == [1.5, 0.5]


@pytest.mark.parametrize(
    ("stamps", "gap"),
    [
        ((1760000000, 1760000002), 2.0),
        ((1760000000000, 1760000002000), 2.0),
        ((1760000000000000, 1760000002000000), 2.0),
        ((1760000000000000000, 1760000002000000000), 2.0),
        (("2026-03-01T12:00:00Z", "2026-03-01T12:00:02+00:00"), 2.0),
        (("2026-03-01 12:00:00", "2026-03-01 12:00:02"), 2.0),
        ((0, 2), 2.0),
    ],
)
def test_times_of_logs_in_any_unit(tmp_path, stamps, gap):
    trace = read_trace(write_lines(tmp_path / "t", [{"time": stamp, "tokens": [1]} for stamp in stamps]))
    assert trace.times[1] - trace.times[0] == pytest.approx(gap)


def test_logs_of_text(tmp_path):
    system = {"role": "system", "content": "Be brief and kind. " * 20}
    path = write_lines(
        tmp_path / "t",
        [
            {"messages": [system, {"role": "user", "content": "Hello"}]},
            {"body": {"messages": [system, {"role": "user", "content": [{"type": "text", "text": "Bye"}]}]}},
            {"prompt": "Hello"},
        ],
    )
    trace = read_trace(path)
    assert "four bytes of text count as one token" in trace.notes[0]
    assert trace.lengths.tolist() == [7, 7, 1]
    assert whole(trace).block.hits == 6
    words = read_trace(path, block_size=2, encode=lambda text: [len(word) for word in text.split()])
    assert words.notes == ()
    assert words.input_tokens.tolist()[2] == 1


# -- bad input --------------------------------------------------------------------------------------------------------


def test_broken_lines_are_counted_and_shown(tmp_path):
    broken = ['{"timestamp": 1', "[]", mooncake(-1, -4, [1]), mooncake(0, 512, [1.5]), {"input_length": 5}]
    trace = read_trace(write_lines(tmp_path / "t", [MOONCAKE[0], *broken, "", MOONCAKE[2]]))
    assert trace.num_requests == 2
    assert [(each.line, each.why) for each in trace.skipped] == [
        (2, "not JSON"),
        (3, "not a JSON object"),
        (4, "input_length is missing or not a whole number from 0 on"),
        (5, "hash_ids are not whole numbers or text"),
        (6, "hash_ids is missing or not a list"),
    ]
    assert trace.notes[0].startswith("5 lines could not be read and are left out (number 2, 3, 4, 5, 6): ")


def test_a_broken_first_line(tmp_path):
    trace = read_trace(write_lines(tmp_path / "t", ["{oops", *MOONCAKE]))
    assert trace.num_requests == 4
    assert [each.line for each in trace.skipped] == [1]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"\x7fELF\x02\x01\0\0\0binary", "is a binary file"),
        (b"hello\nworld\n", "of no known format .line 1: not JSON.: known are Mooncake"),
        (b'{"a": 1, "b": 2}\n', "line 1: an object with a, b"),
        (b'\x80\x81\xff\n', "of no known format"),
        (b'{"hash_ids": [1], "input_length": -1}\n', "No line of .* can be read"),
        (b'{"block_size": 64, "requests": []}\n', "has no requests"),
    ],
)  # fmt: skip
def test_files_that_are_no_traces(tmp_path, content, says):
    path = tmp_path / "t"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=says):
        read_trace(path)


def test_missing_files(tmp_path):
    with pytest.raises(TraceError, match="There is no trace"):
        read_trace(tmp_path / "nowhere")
    with pytest.raises(TraceError, match="has neither 0_trace"):
        read_trace(tmp_path)


# -- real traces ------------------------------------------------------------------------------------------------------

TRACES = Path(__file__).parents[3] / "shared" / "traces"


@pytest.mark.skipif(not TRACES.is_dir(), reason="the recorded traces are not beside the checkout")
def test_recorded_traces_can_be_read():
    """Each file that is there is of a known format, nearly all of its lines are requests, and its figures add up."""
    files = [path for path in TRACES.rglob("*") if path.name.endswith((".jsonl", ".jsonl.gz")) and path.is_file()]
    parts = ("1_sys_prompt", "2_passages", "3_history", "4_user_input", "5_web_search")
    for path in files:
        if path.name.startswith(parts):
            continue
        trace = read_trace(path)
        assert len(trace.skipped) <= trace.num_requests // 100, path
        result = whole(trace)
        assert 0 <= result.full_block.hits <= result.block.hits <= result.block.of, path
        assert result.token.hits <= result.token.of, path


def test_a_byte_order_mark_costs_no_request(tmp_path: Path) -> None:
    path = tmp_path / "bom.jsonl"
    path.write_bytes(
        b"\xef\xbb\xbf" + b'{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}\n' * 2
    )
    assert len(read_trace(path).times) == 2


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"hash_ids": [], "input_length": 1, "x": ' + b"[" * 100_000])
def test_deep_nesting_is_a_broken_line(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "deep.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(TraceError, match="line 1"):
        read_trace(path)


def test_a_block_of_absurd_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge.jsonl"
    path.write_text(
        '{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1], "block_size": 1000000000000000000}'
    )
    with pytest.raises(TraceError, match="A block of"):
        read_trace(path)


def test_seconds_since_1970_in_a_format_of_milliseconds_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "epoch.jsonl"
    lines = [
        f'{{"timestamp": {1_700_000_000 + 30 * i}, "input_length": 512, "output_length": 1, "hash_ids": [1]}}'
        for i in range(10)
    ]
    path.write_text("\n".join(lines))
    assert "--time-unit s" in read_trace(path).unsure_times
