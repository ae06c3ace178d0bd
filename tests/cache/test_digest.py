from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.cache import Namespace
from kvledger.cache.digest import block_digest, chain_digests, fields_digest, token_at, token_bytes

SPACE = Namespace(weights="w", tokenizer="t", adapter="", layout="l", tenant="mä")

# Computed with hashlib and struct alone, from the description of the encoding.
SPACE_DIGEST = "a2c0da739f2ea796bc088653512676ba2de1dc7d79d038cdfe717588bf0f244f"
BLOCK_DIGESTS = [
    "191c3f1905d359d60825df9773187b1b50a6b7a44034709f67a7980d278ade4a",
    "6c5e5263243f921bb316c41ba00e4e88e2107ee3683585fd826cc9020e5209df",
]

PROGRAM = """
from kvledger.cache import Namespace
from kvledger.cache.digest import chain_digests
root = Namespace(weights="w", tokenizer="t", adapter="", layout="l", tenant="mä").digest()
print(root.hex(), *[digest.hex() for digest in chain_digests(root, [1, 2, 3, 4, 5, 6, 7, -8, 9], 4)])
"""


def test_golden_vectors():
    assert SPACE.digest().hex() == SPACE_DIGEST
    tokens = [1, 2, 3, 4, 5, 6, 7, -8, 9]  # the open block at the end has no part
    assert [digest.hex() for digest in chain_digests(SPACE.digest(), tokens, 4)] == BLOCK_DIGESTS


@pytest.mark.parametrize("seed", ["0", "1", "4294967295"])
def test_p09_digests_are_equal_in_every_process(seed):
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONUTF8": "1"}
    printed = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    assert printed.stdout.split() == [SPACE_DIGEST, *BLOCK_DIGESTS]


def test_p03_a_paired_change_of_neighbouring_tokens_changes_the_digest():
    root = SPACE.digest()
    plain = list(chain_digests(root, [100, 200, 300, 400], 4))
    assert plain != list(chain_digests(root, [100 + 31, 200 - 1, 300, 400], 4))


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=12, max_size=12), st.data())
def test_p03_any_change_changes_its_block_and_every_later_one(tokens, data):
    changed = tokens.copy()
    first = data.draw(st.integers(0, 11))
    changed[first] = data.draw(st.integers(-(2**31), 2**31 - 1).filter(lambda token: token != tokens[first]))
    before, after = (list(chain_digests(SPACE.digest(), each, 4)) for each in (tokens, changed))
    assert [a == b for a, b in zip(before, after, strict=True)] == [block < first // 4 for block in range(3)]


@pytest.mark.parametrize("field", [field.name for field in fields(Namespace)])
def test_p04_the_same_value_in_another_field_is_another_namespace(field):
    blank = dict.fromkeys((each.name for each in fields(Namespace)), "")
    digests = {Namespace(**{**blank, name: "X"}).digest() for name in blank}
    assert len(digests) == len(blank)
    assert Namespace(**{**blank, field: "X"}).digest() != Namespace(**{**blank, field: "x"}).digest()


@given(st.dictionaries(st.text(min_size=1).filter(str.isidentifier), st.text(), min_size=1, max_size=3))
def test_fields_are_framed(values):
    joined = {"".join(values): "".join(values.values())}
    assert joined == values or fields_digest("domain", **joined) != fields_digest("domain", **values)
    assert fields_digest("domain", **values) != fields_digest("domain2", **values)


def test_an_open_block_is_not_a_full_one():
    root = SPACE.digest()
    assert block_digest(root, token_bytes([1, 2])) != block_digest(root, token_bytes([1, 2, 0]))


def test_token_bytes_are_little_endian_on_every_machine():
    data = token_bytes([1, -1, 2**31 - 1])
    assert data == bytes([1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 127])
    assert [token_at(data, index) for index in range(3)] == [1, -1, 2**31 - 1]
