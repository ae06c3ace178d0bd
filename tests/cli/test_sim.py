"""`kvledger sim` as a person meets it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.sim.traces import mooncake, write_lines


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    lines = [mooncake(1000 * i, 1024 + 5, [0, i % 3 + 1, 10 + i]) for i in range(12)]
    return write_lines(tmp_path_factory.mktemp("sim") / "trace.jsonl", [*lines, "{broken"])


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-c", "from kvledger.cli import main; main()", "sim", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def json_of(*arguments):
    result = run(*arguments, "--json", "-")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_run_states_what_it_counts(trace):
    result = json_of("run", trace)
    assert result["requests"] == 12
    assert result["whole"]["block"] == {"hits": 11 + 9, "of": 36, "ratio": 20 / 36}
    assert result["whole"]["full_block"] == {"hits": 20, "of": 24, "ratio": 20 / 24}
    assert result["whole"]["token"]["of"] == 12 * 1029
    assert result["last_half"]["block"] == {"hits": 12, "of": 18, "ratio": 12 / 18}
    assert set(result["definitions"]) == {"hit", "block", "full_block", "token", "whole", "last_half"}
    assert result["trace"]["block_size"] == 512
    assert "partial" in result["trace"]["tail"]
    assert result["trace"]["skipped"] == [{"line": 13, "why": "not JSON"}]
    assert result["cache"]["capacity_tokens"] == "unlimited"


def test_run_with_everything(trace):
    small = json_of("run", trace, "--capacity-tokens", 2048, "--policy", "belady", "--ttl", 60)
    assert small["cache"]["capacity_blocks"] == 4
    assert small["cache"]["ttl_seconds"] == 60
    tiers = json_of("run", trace, "--tiers", "ram:2048,disk:unlimited")
    hits = [tiers["tiers"][name]["whole"]["block"]["hits"] for name in ("ram", "disk")]
    assert sum(hits) == tiers["whole"]["block"]["hits"] == 20
    fleet = json_of("run", trace, "--replicas", 3, "--router", "prefix")["fleet"]
    assert sum(each["requests"] for each in fleet["by_replica"]) == 12


def test_run_for_people(trace):
    result = run("run", trace)
    assert result.returncode == 0
    assert "55.56 %" in result.stdout
    assert "contiguous prefix from block 0" in result.stdout
    assert "note: 1 line could not be read and is left out (number 13): not JSON." in result.stderr


def test_curve_is_run_at_every_point(trace):
    curve = json_of("curve", trace, "--policy", "lru", "--policy", "fifo")
    assert [each["policy"] for each in curve["curves"]] == ["lru", "fifo"]
    for each in curve["curves"]:
        for point in each["points"][:3]:
            one = json_of("run", trace, "--capacity-tokens", point["capacity_tokens"], "--policy", each["policy"])
            assert {name: point[name] for name in ("whole", "last_half")} == {
                name: one[name] for name in ("whole", "last_half")
            }
    assert curve["unlimited"] == {name: json_of("run", trace)[name] for name in ("whole", "last_half")}
    assert [p["capacity_blocks"] for p in json_of("curve", trace, "--at", "1024,5000")["curves"][0]["points"]] == [2, 9]


@pytest.mark.parametrize("suffix", ["png", "svg", "html"])
def test_plot(trace, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    picture = tmp_path / f"curve.{suffix}"
    again = tmp_path / f"again.{suffix}"
    for path in (picture, again):
        assert run("plot", trace, path, "--policy", "lru", "--policy", "lfu").returncode == 0
    content = picture.read_bytes()
    assert content == again.read_bytes()
    assert content.startswith({"png": b"\x89PNG", "svg": b"<?xml", "html": b"<!doctype html>"}[suffix])
    if suffix == "html":
        assert b"<svg" in content
        assert b"contiguous prefix" in content


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run", "TRACE", "--capacity-tokens", "0"), "A capacity of '0' tokens cannot be"),
        (("run", "TRACE", "--capacity-tokens", "-3"), "A capacity of '-3' tokens cannot be"),
        (("run", "TRACE", "--capacity-tokens", "nan"), "A capacity of 'nan' tokens cannot be"),
        (("run", "TRACE", "--capacity-tokens", "100"), "give at least 512"),
        (("run", "TRACE", "--policy", "lfuu"), "did you mean lfu"),
        (("run", "TRACE", "--ttl", "nan"), "A time to live of nan seconds cannot be"),
        (("run", "TRACE", "--replicas", "0"), "A fleet of 0 replicas"),
        (("run", "TRACE", "--replicas", "2", "--router", "session"), "use --router prefix"),
        (("run", "TRACE", "--tiers", "ram:1"), "give ram and disk"),
        (("run", "TRACE", "--tiers", "ram:512,disk:512", "--capacity-tokens", "512"), "leave one of them out"),
        (("run", "TRACE", "--time-unit", "minutes"), "known are s, ms"),
        (("run", "nowhere.jsonl"), "There is no trace nowhere.jsonl"),
        (("curve", "TRACE", "--at", "1024,none"), "A capacity of 'none' tokens cannot be"),
        (("curve", "TRACE", "--policy", "lur"), "did you mean lru"),
        (("plot", "TRACE", "curve.doc"), "ends in .png, .svg, .html"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(trace, arguments, says):
    result = run(*(trace if each == "TRACE" else each for each in arguments))
    assert result.returncode == 2
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
