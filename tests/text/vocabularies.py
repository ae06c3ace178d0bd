"""Small vocabularies written by hand, as GGUF metadata and as `tokenizer.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvledger.text.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

# GPT-2's table, written out independently of the code under test: byte -> letter.
_SHIFTED = [*range(0, 33), *range(127, 161), 173]
LETTERS = {byte: chr(256 + _SHIFTED.index(byte)) if byte in _SHIFTED else chr(byte) for byte in range(256)}

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "Ġ Ġ", "o r", "Ġw or", "Ċ Ċ", "ð Ł")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level_metadata(**changes: Any) -> dict[str, Any]:
    """A byte-level vocabulary: three special tokens, one user-defined, all bytes, ten merges. None removes a key."""
    tokens = [*SPECIALS, *LETTERS.values(), *(merge.replace(" ", "") for merge in MERGES), "<think>"]
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL] * 3 + [NORMAL] * (len(tokens) - 4) + [USER_DEFINED],
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": CHATML,
    }
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


def byte_level() -> Tokenizer:
    return Tokenizer.from_metadata(byte_level_metadata(), Path("tiny.gguf"))


# Pieces of a SentencePiece vocabulary with their scores; the best score is merged first.
SCORED = {"▁": -1e3, "h": -1e3, "e": -1e3, "l": -1e3, "o": -1e3, "w": -1e3, "é": -1e3}
SCORED |= {"he": -1.0, "ll": -2.0, "▁h": -3.0, "▁he": -4.0, "llo": -5.0, "hello": -6.0, "▁hello": -7.0, "▁w": -8.0}
SCORED |= {"▁▁": -9.0, "ow": -10.0, "▁▁▁▁": -11.0}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def scored_metadata(**changes: Any) -> dict[str, Any]:
    """A SentencePiece vocabulary: `<unk>`, `<s>`, `</s>`, all bytes, the pieces of `SCORED`. None removes a key."""
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *SCORED]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(SCORED),
        "tokenizer.ggml.scores": [0.0] * 259 + list(SCORED.values()),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


def scored(**changes: Any) -> Tokenizer:
    return Tokenizer.from_metadata(scored_metadata(**changes), Path("tiny.gguf"))


def byte_level_json(**changes: Any) -> dict[str, Any]:
    """The vocabulary of `byte_level_metadata` as the contents of a `tokenizer.json`."""
    metadata = byte_level_metadata()
    ids = {text: id for id, text in enumerate(metadata["tokenizer.ggml.tokens"])}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": ids[text], "content": text, "special": True, **flags} for text in SPECIALS]
    added.append({"id": ids["<think>"], "content": "<think>", "special": False, **flags})
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "vocab": {text: id for text, id in ids.items() if text != "<think>"},
            "merges": list(MERGES),
        },
    } | changes


def write_json(folder: Path, contents: Any, name: str = "tokenizer.json") -> Path:
    path = folder / name
    path.write_text(contents if isinstance(contents, str) else json.dumps(contents), encoding="utf-8")
    return path
