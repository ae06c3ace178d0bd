"""The whole engine around a real, tiny model file: no part of it is a stand-in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvledger.engine.load import EngineSettings, Loaded, load_engine
from kvledger.engine.request import Finished, FinishReason, Generated, Request, Sampling
from kvledger.errors import CacheFolderError, InvalidRequestError
from kvledger.model import reference, weights
from kvledger.text.chat import Chat, Message
from kvledger.text.prompt import Prompt
from tests.model.tiny import tiny_gguf

pytestmark = pytest.mark.slow

GREEDY = Sampling(temperature=0.0)
KV_MEMORY = 4 << 20


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", format="F32")


@pytest.fixture(scope="module")
def loaded(model_path: Path):
    loaded = load_engine(
        EngineSettings(model=str(model_path), mode="exact", kv_dtype="f32", kv_memory=KV_MEMORY, step_tokens=32)
    )
    loaded.engine.start()
    yield loaded
    loaded.engine.close(drain=0.0)


def answer(loaded: Loaded, request: Request) -> tuple[list[int], str, Finished]:
    events = list(loaded.engine.generate(request))
    finished = events[-1]
    assert isinstance(finished, Finished)
    tokens = [event.token for event in events if isinstance(event, Generated)]
    return tokens, "".join(event.text for event in events), finished


def test_greedy_tokens_are_those_of_the_textbook(loaded: Loaded, model_path: Path) -> None:
    prompt = tuple(
        loaded.tokenizer.encode("the cache keeps the blocks of the prompt, and the ledger keeps the account")
    )
    tokens, text, finished = answer(
        loaded, Request("textbook", Prompt(prompt), sampling=GREEDY, max_tokens=24, ignore_eos=True)
    )
    weights_ = weights.load(model_path)
    expected: list[int] = []
    for _ in range(24):
        expected.append(int(np.argmax(reference.logits(weights_, [*prompt, *expected])[-1])))
    assert tokens == expected
    assert finished.reason is FinishReason.LENGTH
    special = loaded.tokenizer.special_ids
    assert text == loaded.tokenizer.decode([token for token in tokens if token not in special])


def test_the_next_turn_of_a_chat_reuses_everything_that_was_computed(loaded: Loaded) -> None:
    assert loaded.template is not None
    first = (Message("user", "what does the ledger keep?", "messages[0]"),)
    prompt = loaded.template.render(Chat(first), answers=loaded.answers)
    sampling = Sampling(temperature=1.0, seed=3)
    tokens, text, finished = answer(
        loaded, Request("turn-1", prompt, sampling=sampling, max_tokens=20, ignore_eos=True)
    )
    assert finished.usage.reused_tokens == 0
    second = (
        *first,
        Message("assistant", text, "messages[1]"),
        Message("user", "and the cache?", "messages[2]"),
    )
    longer = loaded.template.render(Chat(second), answers=loaded.answers)
    assert longer.tokens[: len(prompt.tokens) + len(tokens)] == (*prompt.tokens, *tokens)
    _, _, finished = answer(loaded, Request("turn-2", longer, sampling=GREEDY, max_tokens=2))
    assert finished.usage.reused_tokens == len(prompt.tokens) + len(tokens) - 1


def test_a_batch_gives_each_what_it_gets_alone(loaded: Loaded) -> None:
    texts = ["the cache", "def read(self, block):", "token by token and block by block", "12 blocks of 16 tokens"]
    requests = [
        Request(
            f"batch-{index}",
            Prompt(tuple(loaded.tokenizer.encode(text))),
            sampling=Sampling(seed=index, temperature=0.8, top_p=0.9),
            max_tokens=30,
            ignore_eos=True,
            cache=False,
        )
        for index, text in enumerate(texts)
    ]
    streams = [loaded.engine.generate(request) for request in requests]
    together = [[event.token for event in stream if isinstance(event, Generated)] for stream in streams]
    alone = [answer(loaded, request)[0] for request in requests]
    assert together == alone


def test_settings_that_do_not_go_together_are_refused_by_name(model_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="too small") as caught:
        load_engine(EngineSettings(model=str(model_path), kv_memory=100))
    assert caught.value.param == "kv_memory"
    with pytest.raises(InvalidRequestError, match="step_tokens"):
        EngineSettings(max_running=100, step_tokens=150)


def test_a_folder_or_a_size_that_cannot_be_used_is_refused(model_path: Path, tmp_path: Path) -> None:
    settings = {"model": str(model_path), "kv_memory": KV_MEMORY}
    with pytest.raises(InvalidRequestError, match="too small") as caught:
        load_engine(EngineSettings(**settings, cache_folder=tmp_path, cache_disk=100))
    assert caught.value.param == "cache_disk"
    with pytest.raises(InvalidRequestError, match="too small") as caught:
        load_engine(EngineSettings(**settings, tenant_memory=100))
    assert caught.value.param == "tenant_memory"
    (tmp_path / "file").touch()
    with pytest.raises(CacheFolderError, match="cannot be used"):
        load_engine(EngineSettings(**settings, cache_folder=tmp_path / "file"))


def test_an_engine_finds_on_disk_what_the_last_one_left_there(model_path: Path, tmp_path: Path) -> None:
    settings = EngineSettings(model=str(model_path), kv_memory=KV_MEMORY, cache_folder=tmp_path, cache_disk=KV_MEMORY)
    answers = []
    for turn in range(3):
        loaded = load_engine(settings)
        loaded.engine.start()
        prompt = Prompt(tuple(loaded.tokenizer.encode("the ledger keeps the account " * 12)))
        tokens, _, finished = answer(loaded, Request("r", prompt, sampling=GREEDY, max_tokens=8, ignore_eos=True))
        answers.append(tokens)
        assert finished.usage.reused_tokens == (len(prompt.tokens) - 1 if turn else 0)
        with pytest.raises(CacheFolderError, match="in use"):
            load_engine(settings)
        loaded.engine.close(drain=0.0)
    assert answers[0] == answers[1] == answers[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from kvledger.cli import main; main()", "generate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_generate_streams_text_and_then_an_account(model_path: Path) -> None:
    done = run("what is a block?", "--model", str(model_path), "--max-tokens", "8", "--system", "be brief")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n")
    assert done.stderr.splitlines()[-1].startswith("prompt ")
    assert "0 reused; output" in done.stderr


def test_generate_as_json(model_path: Path) -> None:
    arguments = ("the cache", "--model", str(model_path), "--max-tokens", "5", "--seed", "4", "--temperature", "1")
    done = run(*arguments, "--raw", "--json")
    record = json.loads(done.stdout)
    assert record["model"] == "tiny"
    assert record["finish_reason"] in ("length", "stop")
    assert record["output_tokens"] == 5 or record["finish_reason"] == "stop"
    assert json.loads(run(*arguments, "--raw", "--json").stdout)["text"] == record["text"]


def test_generate_reuses_what_an_earlier_process_kept(model_path: Path, tmp_path: Path) -> None:
    arguments = ("the cache", "--model", str(model_path), "--max-tokens", "5", "--raw", "--json")
    arguments = (*arguments, "--cache-folder", str(tmp_path))
    first, second = (json.loads(run(*arguments).stdout) for _ in range(2))
    assert (first["reused_tokens"], second["reused_tokens"]) == (0, second["prompt_tokens"] - 1)
    assert first["text"] == second["text"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("hello", "--cache-disk", "much"), "--cache-disk"),
        (("hello", "--max-tokens", "0"), "max_tokens"),
        (("hello", "--temperature", "nan"), "temperature"),
        (("",), "no tokens"),
        (("hello", "--system", "x"), "--raw"),
        (("word " * 2000,), "context holds 512"),
    ],
)
def test_generate_refuses_in_one_sentence(model_path: Path, arguments: tuple[str, ...], says: str) -> None:
    done = run(*arguments, "--model", str(model_path), "--raw")
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
