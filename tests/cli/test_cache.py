"""`kvledger cache`: on a folder with a real disk tier in it, and on a server."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvledger.cache import Namespace, PromptCache
from kvledger.cache.disk import DiskTier
from kvledger.cache.tiers import LowerTier
from kvledger.clock import ManualClock
from tests.api.conftest import start  # noqa: F401 (a fixture)
from tests.cli.test_manners import run

SPACE = Namespace("weights", "tokenizer", "", "layout", "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two prompts with eight tokens in common, each in a file of its own, left by a server that has ended."""
    clock = ManualClock()
    tier = DiskTier(tmp_path / "kv", "print", limit_bytes=1 << 20)
    lower = LowerTier(tier, read_block=lambda block: bytes([block]) * 100, write_block=lambda block, payload: None)
    cache = PromptCache(64, block_size=4, bytes_per_block=100, clock=clock, lower=lower)
    for tokens in ([1] * 8 + [2] * 4, [1] * 8 + [3] * 6):
        lease = cache.acquire(SPACE, tokens)
        cache.commit(lease, tokens, len(tokens))
        cache.release(lease)
        cache.persist(100)
    cache.close()
    return tmp_path / "kv"


def answer(*arguments: str) -> dict:
    result = run("cache", *arguments, "--json", "-")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


class TestFolder:
    def test_show_as_json(self, folder):
        (model,) = answer("show", "--folder", str(folder))["models"]
        assert (model["files"], model["problems"]) == (2, [])
        facts = [
            (each["depth"], each["position"], each["tokens"], each["blocks"], each["bytes"])
            for each in model["prefixes"]
        ]
        assert facts == [(0, 0, 8, 2, 200), (1, 8, 4, 1, 100), (1, 8, 6, 2, 200)]
        assert model["prefixes"][0]["parent"] == SPACE.digest().hex()

    def test_show_as_a_tree(self, folder):
        lines = run("cache", "show", "--folder", str(folder)).stdout.splitlines()
        assert lines[0].startswith("print: 2 files, ")
        assert re.match(r".*8 tokens  from 0 on, 200 bytes, written \d{4}-", lines[2])
        assert len(lines) == 5

    def test_verify_finds_a_flipped_bit_and_changes_nothing(self, folder):
        assert answer("verify", "--folder", str(folder)) == {"object": "cache.verified", "files": 2, "problems": []}
        path = sorted(folder.glob("print/*.kv"))[0]
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        result = run("cache", "verify", "--folder", str(folder))
        assert result.returncode == 1
        assert result.stdout.splitlines() == [
            f"{path}: a payload does not match its checksum.",
            "2 files checked, 1 problems.",
        ]
        assert path.exists()

    def test_show_names_what_cannot_be_read_and_shows_the_rest(self, folder):
        path = sorted(folder.glob("print/*.kv"))[1]
        path.write_bytes(path.read_bytes()[:-10])
        (model,) = answer("show", "--folder", str(folder))["models"]
        assert [each["tokens"] for each in model["prefixes"]] == [12]
        assert str(path) in model["problems"][0]

    def test_clear(self, folder):
        freed = answer("clear", "--folder", str(folder))["bytes"]
        assert freed > 500
        assert list(folder.glob("print/*.kv")) == []

    def test_clear_leaves_the_folder_of_a_running_server_alone(self, folder):
        tier = DiskTier(folder, "print", limit_bytes=1 << 20)
        result = run("cache", "clear", "--folder", str(folder))
        assert result.returncode == 2
        assert "in use" in result.stderr
        tier.close()
        assert len(list(folder.glob("print/*.kv"))) == 2

    @pytest.mark.parametrize(("place", "says"), [("missing", "is no folder"), (".", "is no cache folder")])
    def test_what_is_no_cache_folder(self, tmp_path, place, says):
        result = run("cache", "show", "--folder", str(tmp_path / place))
        assert result.returncode == 2
        assert says in result.stderr
        assert len(result.stderr.splitlines()) == 1


class TestServer:
    def test_show_and_clear(self, start):  # noqa: F811
        served = start()
        served.engine.remember("", "line one\nline two \x1b[31m")
        shown = run("cache", "show", "--url", served.url).stdout.splitlines()
        assert shown[0].startswith("23 tokens in 2.0 kB of memory; ram: 2.0 kB of 64.0 kB")
        assert "line one\u23celine two \ufffd[31m" in shown[1]
        assert "expires in 5 min" in shown[1]
        assert answer("show", "--url", f"{served.url}/v1")["prefixes"][0]["tokens"] == 23
        assert run("cache", "clear", "--url", served.url).stdout == "Cleared.\n"
        assert answer("show", "--url", served.url)["prefixes"] == []

    def test_verify(self, start):  # noqa: F811
        served = start()
        assert answer("verify", "--url", served.url) == {"object": "cache.verified", "files": 0, "problems": []}
        served.engine.cache.pool.idle += 1
        result = run("cache", "verify", "--url", served.url)
        assert result.returncode == 1
        assert "free + owned + ready + idle is 65, not 64" in result.stdout

    def test_a_key_that_is_missing_or_not_enough(self, start):  # noqa: F811
        served = start(keys=("one",), operators=("boss",))
        for arguments, says in (((), "valid API key"), (("--api-key", "one"), "operator's key")):
            result = run("cache", "verify", "--url", served.url, *arguments)
            assert result.returncode == 1
            assert says in result.stderr
            assert len(result.stderr.splitlines()) == 1
        assert run("cache", "verify", "--url", served.url, "--api-key", "boss").returncode == 0
        cleared = run("cache", "clear", "--url", served.url, "--api-key", "one").stdout
        assert cleared == "Cleared what was cached for this key.\n"

    def test_nobody_there(self):
        result = run("cache", "show", "--url", "http://127.0.0.1:9")
        assert result.returncode == 1
        assert result.stderr.startswith("kvledger: No answer from http://127.0.0.1:9 (")

    def test_what_is_no_address(self):
        result = run("cache", "show", "--url", "localhost:8000")
        assert result.returncode == 2
        assert "is no address" in result.stderr

    def test_two_places_at_once(self, tmp_path):
        result = run("cache", "show", "--url", "http://127.0.0.1:9", "--folder", str(tmp_path))
        assert result.returncode == 2
        assert "give one of them" in result.stderr
