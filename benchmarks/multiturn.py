"""Hold the same conversations with `kvledger serve` and with peers whose prefix caches are on, and compare.

    python benchmarks/multiturn.py --model SmolLM2-135M-Instruct.Q4_1.gguf --python-of ../peers-venv --rounds 2

A round is 12 conversations of 8 turns with one system prompt, taken in turns: the first question of each, then the
second of each, and so on. Every engine has conversations of its own, since each gets its own answers back; questions
are the same. Engines alternate request by request, so that a machine that slows down slows all of them, and one at a
time computes. `kvledger` and `llama-server` are asked over HTTP with chat messages, OpenVINO GenAI and vLLM in their
own process with token ids, which saves them HTTP, template and tokenizer, and continues their answers exactly.

Shown are the seconds that all requests of a round took together (median of the rounds; of a peer, in its best
setting), and the tokens reused against those that could be: what an earlier request of the run computed, and one token
always left to compute.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import httpx
from http_load import NO_REUSE, OURS, Server, free_port
from peers import Engine, Worker, note, start

from kvledger.clock import SystemClock
from kvledger.model.gguf_file import read_gguf
from kvledger.text.answers import Answers
from kvledger.text.chat import Chat, Message
from kvledger.text.template import ChatTemplate
from kvledger.text.tokenizer import Tokenizer

VOCABULARY = (  # a token each
    "the of and to in is that it was for on are as with his they at be this have from or one had by word but not what"
    " all were we when your can said there use an each which she do how their if will up other about out many then"
    " them these so some her would make like him into time has look two more write go see number no way could people"
    " my than first water been call who oil its now find long down day did get come made may part"
)

IN_PROCESS = {
    "openvino": Engine("workers.openvino_chat", ("default", "f32")),
    "vllm": Engine("workers.vllm_chat", ("float32", "bfloat16")),
}

LLAMA_SETTINGS = {
    "a slot each, fa on": ("--parallel", "{slots}", "--flash-attn", "on"),
    "a slot each, fa off": ("--parallel", "{slots}", "--flash-attn", "off"),
    "one slot, fa on": ("--parallel", "1", "--flash-attn", "on"),
    "one slot, fa off": ("--parallel", "1", "--flash-attn", "off"),
}
"""With one slot, conversations go out to and come back from the server's prompt cache in memory (`--cache-ram`)."""


@dataclass(frozen=True)
class Script:
    """What is said. Counts are in tokens."""

    conversations: int = 12
    turns: int = 8
    system: int = 600
    question: int = 60
    answer: int = 40


@dataclass(frozen=True)
class Reply:
    """What one request gave. `cached` is None where the engine does not tell."""

    text: str
    prompt_tokens: int
    output_tokens: int
    cached: int | None


class Partner(Protocol):
    """An engine to talk to."""

    name: str
    setting: str

    def reply(self, messages: list[Message], max_tokens: int) -> Reply:
        """Answer in exactly `max_tokens` tokens."""
        ...

    def close(self) -> None: ...


class HttpPartner:
    """An OpenAI-compatible server."""

    def __init__(self, server: Server, setting: str) -> None:
        self.name, self.setting = server.name, setting
        self._server = server
        limits = httpx.Limits(max_keepalive_connections=NO_REUSE)
        self._http = httpx.Client(base_url=server.url, timeout=600, limits=limits)
        self._model = self._http.get("/v1/models").json()["data"][0]["id"]

    def reply(self, messages: list[Message], max_tokens: int) -> Reply:
        body = {
            "model": self._model,
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        try:
            answer = self._http.post("/v1/chat/completions", json=body).raise_for_status().json()
        except httpx.HTTPError as error:
            sys.exit(f"{self.name} ({self.setting}) failed: {error} {self._server.obituary()}")
        usage = answer["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if cached is None:
            cached = answer.get("timings", {}).get("cache_n")
        text = answer["choices"][0]["message"]["content"] or ""
        return Reply(text, usage["prompt_tokens"], usage["completion_tokens"], cached)

    def close(self) -> None:
        self._http.close()
        self._server.close()


class WorkerPartner:
    """An engine in a process of its own, asked with token ids. Its answers go into later prompts as sampled."""

    def __init__(self, worker: Worker, tokenizer: Tokenizer) -> None:
        self.name, self.setting = worker.name, worker.setting
        self._worker = worker
        self._tokenizer = tokenizer
        self._answers = Answers()
        self._template = ChatTemplate(tokenizer.chat_template or "", tokenizer, clock=SystemClock(), limit=4096)

    def reply(self, messages: list[Message], max_tokens: int) -> Reply:
        prompt = self._template.render(Chat(tuple(messages)), answers=self._answers).tokens
        answer = self._worker.ask({"tokens": prompt, "max_tokens": max_tokens})
        if "error" in answer:
            sys.exit(f"{self.name} ({self.setting}) failed: {answer['error']}")
        tokens: list[int] = answer["tokens"]  # type: ignore[assignment]
        text = self._tokenizer.decode(tokens)
        self._answers.remember("", prompt, text, tokens)
        return Reply(text, len(prompt), len(tokens), answer["cached"])  # type: ignore[arg-type]

    def close(self) -> None:
        self._worker.close()


@dataclass
class Tally:
    """One round of one engine. `possible` counts the tokens of all prompts that an earlier request had computed."""

    seconds: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached: int | None = 0
    possible: int = 0

    def add(self, reply: Reply, seconds: float, possible: int) -> None:
        self.seconds += seconds
        self.prompt_tokens += reply.prompt_tokens
        self.output_tokens += reply.output_tokens
        self.cached = None if self.cached is None or reply.cached is None else self.cached + reply.cached
        self.possible += possible


@dataclass
class Conversation:
    """What was said so far, and how many tokens of it the engine has computed."""

    messages: list[Message]
    computed: int = 0


def text_of(tokenizer: Tokenizer, draw: random.Random, count: int) -> str:
    """Random words that make `count` tokens."""
    words: list[str] = []
    while len(tokenizer.encode(" ".join(words))) < count:
        words.append(draw.choice(VOCABULARY.split()))
    return " ".join(words)


def hold(
    partners: list[Partner], tokenizer: Tokenizer, script: Script, number: int, openings: list[tuple[int, ...]]
) -> list[Tally]:
    """Round `number` with everybody; its questions occur in no other round.

    `openings` are the prompts that earlier conversations began with; those of this round are added.
    """
    draw = random.Random(number)
    system = Message("system", text_of(tokenizer, draw, script.system), "messages[0].content")
    questions = [
        [text_of(tokenizer, draw, script.question) for _ in range(script.turns)] for _ in range(script.conversations)
    ]
    num_earlier = len(openings)
    openings += [prompt_tokens(tokenizer, [system, user(turns[0])]) for turns in questions]
    shared = [
        max((common(openings[index], other) for other in openings[:index]), default=0)
        for index in range(num_earlier, len(openings))
    ]
    tallies = [Tally() for _ in partners]
    said = [[Conversation([system]) for _ in range(script.conversations)] for _ in partners]
    for turn in range(script.turns):
        for index in range(script.conversations):
            for partner, tally, conversations in zip(partners, tallies, said, strict=True):
                conversation = conversations[index]
                conversation.messages.append(user(questions[index][turn]))
                begin = time.perf_counter()
                reply = partner.reply(conversation.messages, script.answer)
                seconds = time.perf_counter() - begin
                if reply.output_tokens != script.answer:
                    sys.exit(f"{partner.name} answered in {reply.output_tokens} tokens instead of {script.answer}")
                tally.add(reply, seconds, conversation.computed if turn else shared[index])
                conversation.computed = reply.prompt_tokens + reply.output_tokens - 1  # the last was only sampled
                conversation.messages.append(Message("assistant", reply.text, "messages[].content"))
    return tallies


def user(text: str) -> Message:
    return Message("user", text, "messages[].content")


def prompt_tokens(tokenizer: Tokenizer, messages: list[Message]) -> tuple[int, ...]:
    template = ChatTemplate(tokenizer.chat_template or "", tokenizer, clock=SystemClock(), limit=1 << 20)
    return template.render(Chat(tuple(messages))).tokens


def common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Number of leading tokens that two prompts share."""
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def partners_of(given: argparse.Namespace, tokenizer: Tokenizer, script: Script) -> list[Partner]:
    """Start everybody that is installed; who is not is left out, with a line that says why."""
    partners: list[Partner] = []
    ours = [sys.executable, "-c", "from kvledger.cli import main; main()", "serve", "--model", str(given.model)]
    threads = ["--threads", str(given.threads)]
    partners.append(serve(OURS, "", [*ours, *threads]))
    if given.llama_server is None:
        note("left out: llama-server, which is neither on PATH nor named with --llama-server")
    else:
        length = 2 * (script.system + script.turns * (script.question + script.answer + 20))
        for setting, options in LLAMA_SETTINGS.items():
            slots = 1 if "1" in options else script.conversations
            command = [given.llama_server, "--model", str(given.model), *threads, "--ctx-size", str(slots * length)]
            command += [option.format(slots=slots) for option in options]
            partners.append(serve("llama-server", setting, command))
    pythons = [venv / "bin" / "python" for venv in given.python_of or ()] or [Path(sys.executable)]
    names = [name for name in IN_PROCESS if name in given.peers]
    for worker in start(names, pythons, given.model.resolve(), given.threads, IN_PROCESS):
        partners.append(WorkerPartner(worker, tokenizer))
    return partners


def serve(name: str, setting: str, command: list[str]) -> HttpPartner:
    port = free_port()
    server = Server(name, [*command, "--port", str(port)], port)
    server.wait_until_ready()
    return HttpPartner(server, setting)


@dataclass
class Figure:
    """The rounds of one engine in one setting."""

    name: str
    setting: str
    rounds: list[Tally] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return statistics.median(tally.seconds for tally in self.rounds)


def best(figures: list[Figure]) -> dict[str, Figure]:
    """Of every engine the setting that took least."""
    return {figure.name: figure for figure in sorted(figures, key=lambda figure: -figure.seconds)}


def table(figures: list[Figure]) -> str:
    """A Markdown table: medians of seconds, tokens of the first round."""
    ours = next(figure for figure in figures if figure.name == OURS)
    lines = ["| engine | setting | seconds | ours takes | prompt tokens | reused | could be |", "|---" * 7 + "|"]
    for figure in figures:
        first = figure.rounds[0]
        reused = "not told" if first.cached is None else str(first.cached)
        share = f"{ours.seconds / figure.seconds:.2f} of it" if figure is not ours else ""
        lines.append(
            f"| {figure.name} | {figure.setting} | {figure.seconds:.2f} | {share} | {first.prompt_tokens} | {reused}"
            f" | {first.possible} |"
        )
    return "\n".join(lines)


def report(model: Path, figures: list[Figure]) -> dict[str, object]:
    """Everything measured, for `--json`."""
    chosen = best(figures)
    ours = chosen.pop(OURS)
    first = ours.rounds[0]
    return {
        "model": model.name,
        "seconds": {name: figure.seconds for name, figure in {OURS: ours, **chosen}.items()},
        "share_of_best_peer": ours.seconds / min(figure.seconds for figure in chosen.values()) if chosen else None,
        "reused_tokens": first.cached,
        "possible_tokens": first.possible,
        "rounds": [
            {"engine": figure.name, "setting": figure.setting, "rounds": [asdict(tally) for tally in figure.rounds]}
            for figure in figures
        ],
        "load": os.getloadavg(),
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--llama-server", default=shutil.which("llama-server"), metavar="PROGRAM")
    parser.add_argument("--python-of", type=Path, nargs="+", metavar="VENV", help="the environments of the peers")
    parser.add_argument("--peers", nargs="*", choices=IN_PROCESS, default=list(IN_PROCESS), help="default: all")
    parser.add_argument("--conversations", type=int, default=Script.conversations)
    parser.add_argument("--turns", type=int, default=Script.turns)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2, help="cores, and threads, for every engine")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured ('-': standard output)")
    return parser.parse_args()


def main() -> None:
    given = parse()
    if not given.model.is_file():
        sys.exit(f"{given.model}: no such file; `kvledger pull smollm2` prints where the default model is")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.threads])  # the engines inherit it
    tokenizer = Tokenizer.from_metadata(read_gguf(given.model).metadata, given.model)
    script = Script(given.conversations, given.turns)
    partners = partners_of(given, tokenizer, script)
    figures = [Figure(partner.name, partner.setting) for partner in partners]
    try:
        openings: list[tuple[int, ...]] = []
        hold(partners, tokenizer, Script(conversations=2, turns=2), -1, openings)  # a warm-up
        for number in range(given.rounds):
            tallies = hold(partners, tokenizer, script, number, openings)
            for figure, tally in zip(figures, tallies, strict=True):
                figure.rounds.append(tally)
            note(f"round {number + 1} of {given.rounds} done, load {os.getloadavg()[0]:.1f}")
    finally:
        for partner in partners:
            partner.close()
    written = json.dumps(report(given.model, figures), indent=2)
    if given.json == Path("-"):
        print(written)
        return
    print(table(figures))
    if given.json:
        given.json.write_text(written + "\n")


if __name__ == "__main__":
    main()
