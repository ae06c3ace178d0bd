"""Text to tokens and back: exact, and the same ids as everybody else's."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers

from kvledger.errors import InvalidRequestError
from kvledger.model.gguf_file import read_gguf
from kvledger.text.tokenizer import Tokenizer
from tests.text.vocabularies import SPECIALS, byte_level, byte_level_metadata

GOLDEN = json.loads((Path(__file__).parent / "golden_smollm2.json").read_text())
TINY = byte_level()

any_text = st.text(st.characters(exclude_categories=("Cs",)))
awkward = st.text(st.sampled_from("hello wor\n<|im_end>123🙂é\u0301我"), max_size=60)
# SmolLM2's vocabulary lacks six control characters and the leading bytes of the (unassigned) planes 4 to 11.
WRITABLE = st.characters(
    exclude_categories=("Cs",), exclude_characters="\x04\x06\x13\x14\x16\x1d", max_codepoint=0x3FFFF
)
with_names = st.lists(st.sampled_from([*SPECIALS, "<|im_", "end|>", "<think>", "hello", " ", "🙂"])).map("".join)


@given(any_text | awkward | with_names)
@example("<|im_end|>")
@example("\x00\x04\U000f0000\U0010ffff\ufeff")
def test_any_text_comes_back_exactly(text):
    tokens = TINY.encode(text)
    assert TINY.decode(tokens) == text
    assert b"".join(map(TINY.token_bytes, tokens)) == text.encode()


@given(with_names | any_text)
def test_text_never_becomes_a_special_token(text):
    assert TINY.special_ids.isdisjoint(TINY.encode(text))


@given(with_names)
def test_special_tokens_on_request_come_back_exactly_too(text):
    tokens = TINY.encode(text, special=True)
    assert TINY.decode(tokens) == text
    assert sum(token in TINY.special_ids for token in tokens) == sum(text.count(name) for name in SPECIALS)


@given(any_text | awkward)
def test_offsets_cover_the_text_in_order(text):
    tokens, spans = TINY.encode_run(text)
    assert len(tokens) == len(spans)
    covered = {i for start, end in spans for i in range(start, end)}
    assert covered == set(range(len(text)))
    assert all(earlier <= later for earlier, later in pairwise(spans))
    for token, (start, end) in zip(tokens, spans, strict=True):
        assert TINY.token_bytes(token) in text[start:end].encode()


def test_merges_by_hand():
    # h e, l l, he ll, hell o; then the space belongs to the word: Ġ w, o r, Ġw or.
    assert [TINY.token_bytes(token) for token in TINY.encode("hello world")] == [b"hello", b" wor", b"l", b"d"]


def test_user_defined_tokens_are_found_in_text_and_are_not_special():
    assert [TINY.token_bytes(token) for token in TINY.encode("a<think>")] == [b"a", b"<think>"]


def test_properties():
    assert TINY.vocab_size == len(byte_level_metadata()["tokenizer.ggml.tokens"])
    assert TINY.bos_id == 1
    assert TINY.eos_ids == {0, 2}  # what the file names, and the well-known <|endoftext|>
    assert TINY.special_ids == {0, 1, 2}
    assert TINY.names == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert not TINY.adds_bos


def test_ids_without_bytes():
    assert TINY.token_bytes(TINY.vocab_size) == b""  # a padding row of the model's output
    with pytest.raises(ValueError, match="-1 is not a token"):
        TINY.token_bytes(-1)


def test_bytes_that_are_not_utf8_are_replaced():
    broken = TINY.encode("é")[:1]
    assert len(broken) == 1
    assert TINY.decode([*broken, *TINY.encode("a")]) == "\ufffda"


@pytest.mark.parametrize("text", ["\ud800", "ok\udfff", "\ude42\ud83d"])
def test_lone_surrogates_are_refused_by_name(text):
    with pytest.raises(InvalidRequestError, match="lone surrogate") as caught:
        TINY.encode(text)
    assert caught.value.param is None
    with pytest.raises(InvalidRequestError, match=r"`messages\[1\].content`") as caught:
        TINY.check(text, "messages[1].content")
    assert caught.value.param == "messages[1].content"


def test_characters_that_a_vocabulary_cannot_write_are_refused():
    metadata = byte_level_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    tokens[tokens.index("Ą")] = "unused"  # the letter for byte 4
    tokenizer = Tokenizer.from_metadata(metadata, Path("x.gguf"))
    assert tokenizer.decode(tokenizer.encode("\x03\x05Ą")) == "\x03\x05Ą"
    with pytest.raises(InvalidRequestError, match=r"U\+0004 at position 2, for which this model's vocabulary"):
        tokenizer.encode("ab\x04")


def test_fingerprint_follows_everything_that_decides_tokens():
    def fingerprint(**changes):
        return Tokenizer.from_metadata(byte_level_metadata(**changes), Path("x.gguf")).fingerprint

    same = fingerprint()
    assert same == fingerprint() == TINY.fingerprint
    tokens = byte_level_metadata()["tokenizer.ggml.tokens"]
    others = {
        fingerprint(pre="smollm"),
        fingerprint(merges=["h e", "l l", "he ll", "hell o"]),
        fingerprint(tokens=[*tokens[:-1], "<thin>"]),
        fingerprint(add_bos_token=True),
        same,
    }
    assert len(others) == 5
    assert all(len(digest) == 64 for digest in others)


def test_several_threads_get_the_same():
    texts = [f"hello {i} world 🙂" * 20 for i in range(40)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(TINY.encode, texts)) == [TINY.encode(text) for text in texts]


class TestSmolLM2:
    """The real vocabulary. The golden ids are Hugging Face's, made with `transformers` 5.24 and SmolLM2's splits."""

    @pytest.mark.parametrize(("text", "tokens"), GOLDEN["texts"])
    def test_golden_ids(self, smollm2, text, tokens):
        assert smollm2.encode(text) == tokens
        assert smollm2.decode(tokens) == text

    @given(st.text(WRITABLE) | awkward)
    def test_like_the_library_with_the_published_splits(self, smollm2, smollm2_library, text):
        tokens = smollm2.encode(text)
        assert tokens == smollm2_library.encode(text).ids
        assert smollm2.decode(tokens) == text

    @pytest.mark.parametrize("letter", ["\x04", "\x1d", "\U00040000", "\U000bffff"])
    def test_what_it_cannot_write(self, smollm2, letter):
        with pytest.raises(InvalidRequestError, match=f"U\\+{ord(letter):04X} at position 1, for which"):
            smollm2.encode(f"a{letter}")

    def test_tokens_that_the_file_names(self, smollm2):
        assert smollm2.vocab_size == 49152
        assert smollm2.special_ids == set(range(17))
        assert smollm2.eos_ids == {0, 2}
        assert smollm2.encode("<|im_start|>a<|im_end|>", special=True) == [1, *smollm2.encode("a"), 2]

    def test_a_long_text_takes_well_under_a_second(self, smollm2):
        text = " ".join(f"The {i}th paragraph says that caches keep what was computed.\n" for i in range(6000))
        start = time.process_time()
        tokens = smollm2.encode(text)
        assert time.process_time() - start < 1.0
        assert len(tokens) > 90_000

    def test_it_is_built_quickly(self, smollm2_path):
        start = time.process_time()
        Tokenizer.from_metadata(read_gguf(smollm2_path).metadata, smollm2_path)
        assert time.process_time() - start < 0.6


@pytest.fixture(scope="session")
def smollm2_library(smollm2_path):
    """SmolLM2's tokenizer as its `tokenizer.json` describes it: digits apart, then GPT-2's own splits."""
    metadata = read_gguf(smollm2_path).metadata
    vocabulary = {text: id for id, text in enumerate(metadata["tokenizer.ggml.tokens"])}
    library = Library(models.BPE(vocabulary, [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]))
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return library
