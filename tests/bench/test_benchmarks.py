"""The scripts in `benchmarks/`: how figures are chosen, and that a worker's end is told and not suffered."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path

import pytest
from gguf import GGUFReader

from kvledger.bench.work import REGIMES, WARM_UP, Work
from tests.model.tiny import tiny_gguf

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def path_of_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


@pytest.fixture
def peers():
    return importlib.import_module("peers")


@pytest.fixture
def http_load():
    return importlib.import_module("http_load")


def test_the_setting_with_the_better_median_counts(peers) -> None:
    samples = {
        ("kvledger", "decode_1", "fast"): [200.0, 220.0, 90.0],
        ("llama.cpp", "decode_1", "fa-on"): [50.0, 400.0, 60.0],  # one lucky round
        ("llama.cpp", "decode_1", "fa-off"): [100.0, 80.0, 90.0],
    }
    chosen = peers.figures(samples)
    assert chosen["llama.cpp"]["decode_1"] == peers.Figure("fa-off", 90.0, 100.0, [100.0, 80.0, 90.0])
    assert peers.ratios(chosen)["llama.cpp"]["decode_1"] == pytest.approx(200 / 90)
    regime = next(work for work in REGIMES if work.name == "decode_1")
    assert peers.table(chosen, [regime]).splitlines() == [
        "| regime | kvledger | llama.cpp |",
        "|---|---|---|",
        "| decode_1 | 200 (220) | 90 (100) **2.22x** |",
    ]


def test_without_our_engine_there_are_figures_and_no_ratios(peers) -> None:
    chosen = peers.figures({("llama.cpp", "decode_1", "fa-on"): [50.0]})
    assert peers.ratios(chosen) == {}
    assert "x" not in peers.table(chosen, [REGIMES[2]]).splitlines()[-1]


def test_a_peer_that_is_not_installed_is_left_out_with_its_reason(peers, tmp_path: Path, capsys) -> None:
    workers = peers.start(["openvino"], [Path(sys.executable)], tmp_path / "model.gguf", 1)
    assert workers == []
    said = capsys.readouterr().err
    assert "left out: openvino (default): ModuleNotFoundError" in said
    assert "left out: openvino (f32): ModuleNotFoundError" in said


@pytest.fixture
def worker(peers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A noisy worker that takes `depth` seconds for every work, fails at batch 3 and dies at batch 4."""
    (tmp_path / "scripted.py").write_text(
        "import os\n"
        "from workers.pipe import options, serve\n"
        "def measure(work):\n"
        "    print('noise on standard output')\n"
        "    if work.batch == 3: raise ValueError('three is too many')\n"
        "    if work.batch == 4: os._exit(1)\n"
        "    return float(work.depth)\n"
        "serve(options(), options().setting, measure)\n"
    )
    monkeypatch.setitem(peers.ENGINES, "scripted", peers.Engine("scripted", ("calm",)))
    monkeypatch.setattr(peers, "PATHS", [*peers.PATHS, tmp_path])
    (worker,) = peers.start(["scripted"], [Path(sys.executable)], tmp_path / "model.gguf", 1)
    yield worker
    worker.close()


def test_a_worker_answers_over_its_pipe(peers, worker) -> None:
    assert worker.description == "calm"
    assert worker.measure(Work("prefill", batch=1, depth=4, steps=0)) == 1.0
    assert worker.measure(Work("decode", batch=2, depth=4, steps=10)) == 5.0


def test_a_worker_survives_what_it_cannot_do(worker) -> None:
    assert worker.measure(Work("decode", batch=3, depth=4, steps=1)) == "ValueError: three is too many"
    assert worker.measure(WARM_UP) == pytest.approx(8 / 32)


def test_the_death_of_a_worker_is_a_sentence(worker) -> None:
    assert isinstance(worker.measure(Work("decode", batch=4, depth=4, steps=1)), str)
    assert isinstance(worker.measure(WARM_UP), str)


@pytest.mark.parametrize(
    ("name", "matrix", "head"), [("Q4_0", "Q4_0", "Q8_0"), ("Q8_0", "Q8_0", "Q8_0"), ("F16", "F16", "F16")]
)
def test_requantised_files_keep_everything_but_the_format(tmp_path: Path, name: str, matrix: str, head: str) -> None:
    requantise = importlib.import_module("requantise").requantise
    source, target = tiny_gguf(tmp_path / "tiny.Q4_1.gguf"), tmp_path / "tiny.gguf"
    requantise(source, target, name)
    before, after = GGUFReader(source), GGUFReader(target)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in after.tensors}
    assert kinds["blk.0.ffn_up.weight"] == matrix
    assert kinds["token_embd.weight"] == head
    assert kinds["blk.0.attn_norm.weight"] == "F32"
    assert [tensor.name for tensor in after.tensors] == [tensor.name for tensor in before.tensors]
    for key, field in before.fields.items():
        if not key.startswith("GGUF.") and key != "general.file_type":
            assert after.fields[key].contents() == field.contents(), key


def test_time_to_first_text_skips_events_without_text(http_load) -> None:
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    text = b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n'
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1}}\n\ndata: [DONE]\n\n'
    assert [http_load.text_of(event) for event in http_load.events(role + text)] == ["", "Hi"]
    assert [event.get("usage") for event in http_load.events(usage)] == [{"prompt_tokens": 5, "completion_tokens": 1}]


def test_a_round_adds_up_what_the_server_says(http_load) -> None:
    """Against a real socket: two clients, three completions each, seven tokens every time."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            if head.startswith(b"GET /v1/models "):
                writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\n{"data":[{"id":"model"}]}')
                continue
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            body = b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n'
            body += b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7}}\n\n'
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async def measure():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        result = await http_load.put_load(url, http_load.Load(clients=2, requests=3, max_tokens=7), 0)
        server.close()
        return result

    result = asyncio.run(measure())
    assert result.output_tokens == 2 * 3 * 7
    assert result.prompt_tokens == 2 * 3 * 5
    assert 0 < result.ttft_p50 <= result.ttft_p95
    assert result.output_tps > 0


def test_every_prompt_of_a_load_differs_and_is_the_same_again(http_load) -> None:
    texts = [
        http_load.prompt(number, client, request) for number in range(3) for client in range(8) for request in range(2)
    ]
    assert len(set(texts)) == len(texts)
    assert http_load.prompt(1, 2, 0) == http_load.prompt(1, 2, 0)
