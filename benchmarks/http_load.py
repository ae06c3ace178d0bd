"""Put the same streaming load on `kvledger serve` and `llama-server`, in turns, and compare.

    python benchmarks/http_load.py --model SmolLM2-135M-Instruct.Q4_1.gguf --clients 8 --rounds 3

Both servers run on the same cores with the model loaded; only one is asked at a time. In a round, each client streams
a few chat completions one after another, every one with a prompt of its own, so that nothing but the chat template can
come from a prompt cache. Shown are the tokens per second of all clients together (as the servers' own `usage` counts
them) and the time to the first piece of text. `llama-server` must be on PATH or be named with --llama-server; it runs
with and without flash attention, and the better counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

OURS = "kvledger"

NO_REUSE = 0
"""Connections kept for the next request. Now and then llama-server closes one just when the next request comes on it,
which is lost ("Server disconnected"); so every request, to whatever server, gets a connection of its own."""

TOPICS = [
    "the history of clocks",
    "bees and pollination",
    "suspension bridges",
    "the printing press",
    "volcanoes",
    "the silk road",
    "jazz music",
    "coral reefs",
    "steam engines",
    "the periodic table",
    "medieval castles",
    "chess openings",
    "photosynthesis",
    "the moons of Jupiter",
    "bread baking",
    "the invention of glass",
    "migration of birds",
    "ancient Rome",
    "sailing ships",
    "the water cycle",
    "origami",
    "earthquakes",
    "lighthouses",
    "the human heart",
]


@dataclass(frozen=True)
class Load:
    """One round: `clients` at once, each with `requests` completions of at most `max_tokens` tokens in a row."""

    clients: int
    requests: int
    max_tokens: int


@dataclass(frozen=True)
class Answer:
    """What one request saw: seconds to the first text, and tokens as the server counts them."""

    ttft: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Round:
    """One round of one server. Times are in seconds."""

    output_tps: float
    ttft_p50: float
    ttft_p95: float
    output_tokens: int
    prompt_tokens: int


class Server:
    """A running HTTP server; always `close` it."""

    def __init__(self, name: str, command: list[str], port: int) -> None:
        self.name, self.url = name, f"http://127.0.0.1:{port}"
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in `close`)
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, text=True)

    def wait_until_ready(self, seconds: float = 120) -> None:
        """Wait for `/health`; exits with the server's last words if it ends or stays silent."""
        deadline = time.monotonic() + seconds
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        sys.exit(f"{self.name} did not start. {self.obituary()}")

    def put(self, load: Load, number: int) -> Round:
        """Run round `number`; if the server breaks off, exit and say which one it was, and how it ended."""
        try:
            return asyncio.run(put_load(self.url, load, number))
        except (httpx.TransportError, RuntimeError) as error:
            sys.exit(f"{self.name} failed in round {number + 1}: {error} {self.obituary()}")

    def obituary(self) -> str:
        """What became of the process, with its last words."""
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            fate = "The process is still there."
        else:
            code = self._process.returncode
            fate = f"The process ended with {signal.Signals(-code).name if code < 0 else f'code {code}'}."
        self._log.seek(0)
        return f"{fate} Its last words: {self._log.read()[-500:].strip()}"

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._log.close()


def commands(model: Path, llama_server: str | None, load: Load, threads: int) -> dict[str, tuple[list[str], int]]:
    """Server name -> (command, port), for those that are installed."""
    found: dict[str, tuple[list[str], int]] = {}
    port = free_port()
    ours = [sys.executable, "-c", "from kvledger.cli import main; main()", "serve", "--model", str(model)]
    found[OURS] = [*ours, "--port", str(port), "--threads", str(threads)], port
    if llama_server is None:
        print("left out: llama-server, which is neither on PATH nor named with --llama-server", file=sys.stderr)
        return found
    for attention in ("on", "off"):
        port = free_port()
        command = [llama_server, "--model", str(model), "--port", str(port), "--threads", str(threads)]
        command += ["--parallel", str(load.clients), "--ctx-size", str(2048 * load.clients)]
        command += ["--flash-attn", attention]
        found[f"llama-server fa-{attention}"] = command, port
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def put_load(url: str, load: Load, number: int) -> Round:
    """Run round `number` against the server at `url`."""
    limits = httpx.Limits(max_connections=load.clients, max_keepalive_connections=NO_REUSE)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        start = time.perf_counter()
        answers = await asyncio.gather(*(client(http, model, load, number, i) for i in range(load.clients)))
        elapsed = time.perf_counter() - start
    flat = [answer for row in answers for answer in row]
    output_tokens = sum(answer.output_tokens for answer in flat)
    waits = sorted(answer.ttft for answer in flat)
    return Round(
        output_tps=output_tokens / elapsed,
        ttft_p50=statistics.median(waits),
        ttft_p95=waits[min(len(waits) - 1, int(0.95 * len(waits)))],
        output_tokens=output_tokens,
        prompt_tokens=sum(answer.prompt_tokens for answer in flat),
    )


async def client(http: httpx.AsyncClient, model: str, load: Load, number: int, index: int) -> list[Answer]:
    """One client: its completions one after another."""
    return [await complete(http, model, prompt(number, index, i), load.max_tokens) for i in range(load.requests)]


def prompt(number: int, index: int, request: int) -> str:
    """About fifty tokens, the same for every server and different for every request of every round."""
    draw = random.Random(f"{number}/{index}/{request}")
    topics = draw.sample(TOPICS, 12)
    return f"{topics[0]}: write a long and detailed essay that brings together {', '.join(topics[1:])}."


async def complete(http: httpx.AsyncClient, model: str, text: str, max_tokens: int) -> Answer:
    """Stream one chat completion. Events are only collected while it runs, and parsed afterwards."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start = time.perf_counter()
    arrived: list[tuple[float, bytes]] = []
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise RuntimeError(f"status {response.status_code}: {(await response.aread()).decode()}")
        async for chunk in response.aiter_raw():
            arrived.append((time.perf_counter() - start, chunk))
    first = next(at for at, chunk in arrived if any(text_of(event) for event in events(chunk)))
    usage = next(event["usage"] for event in events(b"".join(chunk for _, chunk in arrived)) if event.get("usage"))
    return Answer(first, usage["prompt_tokens"], usage["completion_tokens"])


def events(raw: bytes) -> list[dict]:
    """The JSON of every complete `data:` line."""
    lines = (line[5:].strip() for line in raw.split(b"\n") if line.startswith(b"data:"))
    return [json.loads(line) for line in lines if line.endswith(b"}")]


def text_of(event: dict) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])


def medians(rounds: list[Round]) -> dict[str, float]:
    """Field by field."""
    return {name: statistics.median(getattr(one, name) for one in rounds) for name in asdict(rounds[0])}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--llama-server", default=shutil.which("llama-server"), metavar="PROGRAM")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=2, help="completions of each client in a round")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="cores, and threads, for every server")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured ('-': standard output)")
    return parser.parse_args()


def main() -> None:
    given = parse()
    load = Load(given.clients, given.requests, given.max_tokens)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.threads])  # the servers inherit it
    servers: list[Server] = []
    measured: dict[str, list[Round]] = {}
    try:
        for name, (command, port) in commands(given.model, given.llama_server, load, given.threads).items():
            servers.append(Server(name, command, port))
            servers[-1].wait_until_ready()
            servers[-1].put(Load(2, 1, 8), -1)
        for number in range(given.rounds):
            for server in servers:
                measured.setdefault(server.name, []).append(server.put(load, number))
            print(f"round {number + 1} of {given.rounds} done, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    finally:
        for server in servers:
            server.close()
    show(measured, given.json)


def show(measured: dict[str, list[Round]], json_to: Path | None) -> None:
    """A Markdown table, or JSON."""
    summary = {name: medians(rounds) for name, rounds in measured.items()}
    ours = summary[OURS]
    peers = [row["output_tps"] for name, row in summary.items() if name != OURS]
    ratio = ours["output_tps"] / max(peers) if peers else None
    every = {name: [asdict(one) for one in rounds] for name, rounds in measured.items()}
    written = json.dumps({"medians": summary, "ratio": ratio, "rounds": every}, indent=2)
    if json_to == Path("-"):
        print(written)
        return
    print("| server | tokens/s | TTFT p50, ms | TTFT p95, ms | tokens out |\n|---|---|---|---|---|")
    for name, row in summary.items():
        waits = f"{1000 * row['ttft_p50']:.0f} | {1000 * row['ttft_p95']:.0f}"
        print(f"| {name} | {row['output_tps']:.0f} | {waits} | {row['output_tokens']:.0f} |")
    if ratio:
        print(f"\nkvledger gives {ratio:.2f} times the tokens per second of llama-server.")
    if json_to:
        json_to.write_text(written + "\n")


if __name__ == "__main__":
    main()
