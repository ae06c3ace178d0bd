from __future__ import annotations

import socket

import pytest

from kvledger.api.server import AddressError, bind
from kvledger.cli.serve import parse_size, served_name, welcome
from kvledger.errors import InvalidRequestError
from tests.cli.test_manners import run


@pytest.mark.parametrize(
    ("text", "size"),
    [("512", 512), ("1k", 1024), ("512M", 512 << 20), ("2GiB", 2 << 30), ("1.5 GB", 3 << 29), ("1T", 1 << 40)],
)
def test_sizes(text, size):
    assert parse_size(text, "--kv-memory") == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "1X", "1e3", "nan"])
def test_what_is_no_size(text):
    with pytest.raises(InvalidRequestError, match=r"--kv-memory is .* no size"):
        parse_size(text, "--kv-memory")


def test_a_file_is_served_under_its_own_name(tmp_path):
    path = tmp_path / "Some-Model.Q4_1.gguf"
    path.touch()
    assert served_name(str(path)) == "Some-Model.Q4_1"
    assert served_name(str(tmp_path) + "/") == tmp_path.name
    assert served_name("smollm2") == "smollm2"


def test_the_first_lines_say_where_and_what_to_try():
    shown = welcome("m", "127.0.0.1", 8000, locked=False)
    first, second = shown.splitlines()
    assert "http://127.0.0.1:8000/v1" in first
    assert second.strip().startswith("curl http://127.0.0.1:8000/v1/chat/completions")
    assert "Authorization" not in shown


@pytest.mark.parametrize(("address", "url"), [("0.0.0.0", "http://127.0.0.1:80/v1"), ("::", "http://[::1]:80/v1")])
def test_what_to_try_can_be_reached_and_has_a_key_where_one_is_needed(address, url):
    shown = welcome("m", address, 80, locked=True)
    assert shown.count(url) == 2
    assert "Bearer YOUR_KEY" in shown


class TestAddresses:
    def test_a_port_in_use_is_told_before_the_model_is_looked_for(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            result = run("serve", "--model", "no-such-model", "--port", str(port))
        assert result.returncode == 2
        assert result.stderr == (
            f"kvledger: Port {port} on 127.0.0.1 is in use by another program:"
            " stop that, or choose another port with --port.\n"
        )

    @pytest.mark.parametrize(
        ("host", "says"), [("no such host", "unknown"), ("203.0.113.1", "no address of this machine")]
    )
    def test_a_host_that_is_not_ours(self, host, says):
        with pytest.raises(AddressError, match=says):
            bind(host, 0)

    def test_port_zero_takes_a_free_one(self):
        with bind("127.0.0.1", 0) as listener:
            assert listener.getsockname()[1] > 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--model", "no-such-model"), "no-such-model"),
        (("--kv-memory", "much"), "--kv-memory"),
        (("--cache-disk", "some"), "--cache-disk"),
        (("--tenant-memory", "none"), "--tenant-memory"),
        (("--api-key", ""), "API key"),
    ],
)
def test_wrong_settings_are_one_sentence(arguments, says):
    result = run("serve", "--port", "0", *arguments)
    assert result.returncode == 2
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_without_keys_it_serves_this_machine_alone(tmp_path):
    result = run("serve", "--host", "0.0.0.0", "--port", "0", "--ledger", str(tmp_path / "ledger.db"))
    assert result.returncode == 2
    assert "kvledger keys add NAME" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--as", "antropic:claude-sonnet-5.5"), "anthropic"),
        (("--machine-price", "much"), "2.50/hour"),
        (("--keys", "no-such-file.db"), "no-such-file.db"),
    ],
)
def test_wrong_books_are_one_sentence(arguments, says):
    result = run("serve", "--port", "0", "--ledger", "none", *arguments)
    assert result.returncode == 2
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1
