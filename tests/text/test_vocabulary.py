"""Vocabularies as files describe them: what is read, and what is refused by name."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from kvledger.errors import ModelFileError
from kvledger.text.tokenizer import Tokenizer
from tests.text.vocabularies import (
    BYTES,
    MERGES,
    SCORED,
    byte_level,
    byte_level_json,
    byte_level_metadata,
    scored,
    scored_metadata,
    write_json,
)

PATH = Path("model.gguf")


def pieces(tokenizer: Tokenizer, text: str, **options: bool) -> list[str]:
    return [
        tokenizer.token_bytes(token).decode("utf-8", "backslashreplace") for token in tokenizer.encode(text, **options)
    ]


class TestGGUF:
    @pytest.mark.parametrize(
        ("metadata", "says"),
        [
            (byte_level_metadata(pre="nobody-knows"), "tokenizer.ggml.pre is 'nobody-knows'"),
            (byte_level_metadata(pre=None), "has no tokenizer.ggml.pre"),
            (byte_level_metadata(model="bert"), "of the kind 'bert'"),
            (byte_level_metadata(model=None), "has no tokenizer.ggml.model"),
            (byte_level_metadata(tokens=None), "has no tokenizer.ggml.tokens"),
            (byte_level_metadata(merges=None), "has no tokenizer.ggml.merges"),
            (byte_level_metadata(token_type=[1, 1]), "tokenizer.ggml.token_type has 2 entries for 270 tokens"),
            (byte_level_metadata(tokens=7), "tokenizer.ggml.tokens is not a list of str"),
            (byte_level_metadata(tokens=["a", 7]), "tokenizer.ggml.tokens is not a list of str"),
            (byte_level_metadata(merges=["he"]), "cannot be built"),
            (byte_level_metadata(pre=["smollm"]), "tokenizer.ggml.pre is ['smollm']"),
            (scored_metadata(scores=[0.0]), "tokenizer.ggml.scores has 1 entries"),
            (byte_level_metadata(merges=["h e", "q zz"]), "cannot be built"),
            (scored_metadata(scores=None), "has no tokenizer.ggml.scores"),
            (scored_metadata(tokens=["<unk>", *SCORED], token_type=[2] + [1] * len(SCORED)), "has no token <0x00>"),
        ],
    )
    def test_what_cannot_be_understood_is_refused(self, metadata, says):
        with pytest.raises(ModelFileError) as caught:
            Tokenizer.from_metadata(metadata, PATH)
        assert says in str(caught.value)
        assert str(PATH) in str(caught.value)

    def test_whole_words_skip_the_merges_where_the_model_says_so(self):
        tokens = byte_level_metadata()["tokenizer.ggml.tokens"]
        tokens[tokens.index("hello")], merges = "world", list(MERGES[:3])
        for pre, expected in (("llama-bpe", ["world"]), ("gpt-2", ["w", "o", "r", "l", "d"])):
            metadata = byte_level_metadata(pre=pre, tokens=tokens, merges=[*merges, *MERGES[4:]])
            metadata["tokenizer.ggml.merges"].remove("Ġw or")
            metadata["tokenizer.ggml.merges"].remove("o r")
            assert pieces(Tokenizer.from_metadata(metadata, PATH), "world") == expected

    @pytest.mark.parametrize(
        ("changes", "adds"),
        [({}, False), ({"pre": "llama-bpe"}, True), ({"pre": "llama-bpe", "add_bos_token": False}, False)],
    )
    def test_bos(self, changes, adds):
        assert Tokenizer.from_metadata(byte_level_metadata(**changes), PATH).adds_bos is adds

    def test_ids_outside_the_vocabulary_name_nothing(self):
        tokenizer = Tokenizer.from_metadata(byte_level_metadata(bos_token_id=10**6), PATH)
        assert tokenizer.bos_id is None
        assert "bos_token" not in tokenizer.names


def sentencepiece(text: str) -> list[str]:
    """SentencePiece's own algorithm, the slow way: merge the adjacent pair whose piece scores best, leftmost first."""
    symbols = list(text.replace(" ", "▁"))
    while True:
        pairs = [(SCORED.get(a + b), i) for i, (a, b) in enumerate(pairwise(symbols))]
        found = [(-score, i) for score, i in pairs if score is not None]
        if not found:
            break
        i = min(found)[1]
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    known = [[symbol] if symbol in SCORED else [f"<0x{byte:02X}>" for byte in symbol.encode()] for symbol in symbols]
    return [piece for group in known for piece in group]


class TestSentencePiece:
    TOKENS = ("<unk>", "<s>", "</s>", *BYTES, *SCORED)
    PLAIN, PREFIXED = scored(add_space_prefix=False), scored()

    @given(st.text(st.sampled_from("helo wé🙂\n"), max_size=40))
    def test_like_the_slow_algorithm(self, text):
        assert [self.TOKENS[token] for token in self.PLAIN.encode(text)] == sentencepiece(text)

    @given(st.text(st.characters(exclude_categories=("Cs",))) | st.text(st.sampled_from("h e▁<0x>s"), max_size=40))
    def test_any_text_comes_back_exactly(self, text):
        assert self.PLAIN.decode(self.PLAIN.encode(text)) == text
        assert self.PREFIXED.decode(self.PREFIXED.encode(text)).removeprefix(" ") in (text, text.removeprefix(" "))

    def test_the_mark_itself_goes_byte_by_byte(self):
        assert [self.TOKENS[token] for token in self.PLAIN.encode("h▁e")] == ["h", "<0xE2>", "<0x96>", "<0x81>", "e"]
        assert self.PLAIN.encode_run("h▁e")[1] == [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)]

    def test_names_of_bytes_and_special_tokens_are_text(self):
        tokens = self.PLAIN.encode("<0x41></s>")
        assert self.PLAIN.decode(tokens) == "<0x41></s>"
        assert self.PLAIN.special_ids.isdisjoint(tokens)

    def test_a_space_is_put_before_text_and_after_special_tokens_but_not_inside(self):
        assert pieces(self.PREFIXED, "hello") == [" hello"]
        assert pieces(self.PREFIXED, "hello</s>hello", special=True) == [" hello", "</s>", " hello"]
        assert self.PREFIXED.encode_run("hello", after_text=True)[0] == self.PLAIN.encode("hello")
        assert self.PREFIXED.encode("") == []
        assert self.PREFIXED.encode_run("he hello")[1] == [(0, 2), (2, 8)]
        assert self.PREFIXED.adds_bos


class TestJSON:
    def test_the_same_vocabulary_from_either_file(self, tmp_path):
        path = write_json(tmp_path, byte_level_json())
        config = write_json(tmp_path, {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}}, "c.json")
        ours, theirs = Tokenizer.from_file(path, config), byte_level()
        for text in ("hello world <|im_end|>\n\n🙂 <think>", "", "e\u0301"):
            assert ours.encode(text) == theirs.encode(text)
            assert ours.encode(text, special=True) == theirs.encode(text, special=True)
        assert (ours.bos_id, ours.eos_ids, ours.special_ids) == (theirs.bos_id, theirs.eos_ids, theirs.special_ids)
        assert ours.names == theirs.names
        assert [ours.token_bytes(i) for i in range(300)] == [theirs.token_bytes(i) for i in range(300)]
        assert ours.fingerprint != theirs.fingerprint

    def test_like_the_library(self, tmp_path):
        path = write_json(tmp_path, byte_level_json())
        text = "hello  world <think>\n\n"
        assert Tokenizer.from_file(path).encode(text) == Library.from_file(str(path)).encode(text).ids

    def test_normalisation_is_left_out_so_that_text_comes_back(self, tmp_path):
        tokenizer = Tokenizer.from_file(write_json(tmp_path, byte_level_json(normalizer={"type": "NFC"})))
        assert tokenizer.decode(tokenizer.encode("e\u0301")) == "e\u0301"

    def test_special_tokens_may_swallow_white_space(self, tmp_path):
        contents = byte_level_json()
        contents["added_tokens"][2] |= {"lstrip": True, "rstrip": True}
        tokenizer = Tokenizer.from_file(write_json(tmp_path, contents))
        assert pieces(tokenizer, "h <|im_end|>\n o", special=True) == ["h", "<|im_end|>", "o"]
        assert tokenizer.decode(tokenizer.encode("h <|im_end|>\n o")) == "h <|im_end|>\n o"

    @pytest.mark.parametrize(
        ("post_processor", "config", "adds"),
        [
            (None, {}, False),
            ("template", {}, True),
            ("template", {"add_bos_token": False}, False),
            (None, {"add_bos_token": True}, True),
        ],
    )
    def test_bos(self, tmp_path, post_processor, config, adds):
        template = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [],
            "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
        }
        contents = byte_level_json(post_processor=template if post_processor else None)
        config_path = write_json(tmp_path, {"bos_token": "<|im_start|>", **config}, "config.json")
        tokenizer = Tokenizer.from_file(write_json(tmp_path, contents), config_path)
        assert tokenizer.adds_bos is adds
        assert tokenizer.encode("hello") == byte_level().encode("hello")  # BOS is the caller's to add

    @pytest.mark.parametrize(
        ("config", "sibling", "expected"),
        [
            ({}, None, None),
            ({"chat_template": "one"}, "two", "one"),
            ({}, "two", "two"),
            ({"chat_template": [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]}, None, "d"),
        ],
    )
    def test_chat_template(self, tmp_path, config, sibling, expected):
        if sibling:
            write_json(tmp_path, sibling, "chat_template.jinja")
        config_path = write_json(tmp_path, config, "tokenizer_config.json")
        assert Tokenizer.from_file(write_json(tmp_path, byte_level_json()), config_path).chat_template == expected

    @pytest.mark.parametrize(
        ("contents", "says"),
        [
            ("{", "is not JSON"),
            ([1], "is not a JSON object"),
            ({}, "of the kind None"),
            (byte_level_json(model={"type": "WordPiece"}), "of the kind 'WordPiece'"),
            (byte_level_json(model={"type": "BPE"}), "cannot be built"),
            (byte_level_json(pre_tokenizer={"type": "Whitespace"}), "neither byte by byte nor with byte fallback"),
        ],
    )
    def test_what_cannot_be_understood_is_refused(self, tmp_path, contents, says):
        path = write_json(tmp_path, contents)
        with pytest.raises(ModelFileError, match=says) as caught:
            Tokenizer.from_file(path)
        assert str(path) in str(caught.value)

    def test_a_missing_file(self, tmp_path):
        with pytest.raises(ModelFileError, match="cannot be read: No such file"):
            Tokenizer.from_file(tmp_path / "tokenizer.json")

    @pytest.mark.parametrize(
        ("normalizer", "pre_tokenizer"),
        [
            (
                [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}],
                None,
            ),
            (None, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}),
            (None, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": False}),
            (None, {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True, "split": False}),
        ],
    )
    def test_sentencepiece_like_the_library(self, tmp_path, normalizer, pre_tokenizer):
        tokens = ["<unk>", "<s>", "</s>", *BYTES, *SCORED]
        contents = {
            "version": "1.0",
            "added_tokens": [
                {"id": i, "content": text, "special": True, "normalized": False}
                | {"single_word": False, "lstrip": False, "rstrip": False}
                for i, text in enumerate(tokens[:3])
            ],
            "normalizer": normalizer and {"type": "Sequence", "normalizers": normalizer},
            "pre_tokenizer": pre_tokenizer,
            "model": {
                "type": "BPE",
                "byte_fallback": True,
                "vocab": {text: i for i, text in enumerate(tokens)},
                "merges": ["h e", "l l", "▁ h", "▁ he", "▁h e", "ll o", "he llo", "▁ hello", "▁he llo", "▁ w", "▁ ▁"],
            },
        }
        path = write_json(tmp_path, json.dumps(contents))
        ours, library = Tokenizer.from_file(path), Library.from_file(str(path))
        for text in ("hello", "he hello é🙂", "  w", "hello</s>hello</s>"):
            assert ours.encode(text, special=True) == library.encode(text).ids, text
