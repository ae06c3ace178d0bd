"""The vocabulary in a GGUF file: byte-level BPE ("gpt2") and SentencePiece BPE ("llama")."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, models, normalizers
from tokenizers import Tokenizer as Backend

from kvledger.errors import ModelFileError
from kvledger.text.vocabulary import (
    SPACE_MARK,
    SpacePrefix,
    Special,
    Vocabulary,
    build,
    byte_level_pieces,
    check_fallback,
    missing_byte_letters,
    space_mark_pieces,
    turn_ends,
)
from kvledger.text.word_split import WORD_SPLITS, WordSplit


class _Type(IntEnum):
    """`tokenizer.ggml.token_type`, as in the GGUF specification."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def gguf_vocabulary(metadata: Mapping[str, Any], path: Path) -> Vocabulary:
    """Build the vocabulary that the metadata of the GGUF file at `path` describes.

    Raises `ModelFileError` for a kind of tokenizer, or a way of splitting words, that is not known here.
    """
    kind = _need(metadata, "tokenizer.ggml.model", path)
    texts: Sequence[str] = _need_list(metadata, "tokenizer.ggml.tokens", str, path)
    types = [_Type.NORMAL] * len(texts)
    if "tokenizer.ggml.token_type" in metadata:
        types = _need_list(metadata, "tokenizer.ggml.token_type", int, path, len(texts))
    # Special tokens are kept out of the merging itself, so that no text whatever can produce one.
    odd = {id: type for id, type in enumerate(types) if type != _Type.NORMAL}
    special_ids = [id for id, type in odd.items() if type in (_Type.CONTROL, _Type.UNKNOWN)]
    specials = {texts[id]: Special(id) for id in special_ids}
    ids = {text: id for id, text in enumerate(texts) if text not in specials}
    if kind == "gpt2":
        split = _word_split(metadata, path)
        merges = [tuple(merge.split(" ", 1)) for merge in _need_list(metadata, "tokenizer.ggml.merges", str, path)]
        backend = build(path, lambda: Backend(models.BPE(ids, merges, ignore_merges=split.whole_words)))
        backend.pre_tokenizer = split.pre_tokenizer()
        pieces = byte_level_pieces(texts, odd)
        missing = missing_byte_letters(ids)
        adds_bos, prefix = split.adds_bos, SpacePrefix()
    elif kind == "llama":
        check_fallback(ids, path)
        ordinary = {text: id for text, id in ids.items() if id not in odd}
        scores = _need_list(metadata, "tokenizer.ggml.scores", float, path, len(texts))
        merges = _merges_by_score(ordinary, scores)
        backend = build(path, lambda: Backend(models.BPE(ids, merges, byte_fallback=True)))
        backend.normalizer = normalizers.Replace(" ", SPACE_MARK)
        pieces = space_mark_pieces(texts, odd)
        missing = b""
        adds_bos = True
        prefixed = metadata.get("tokenizer.ggml.add_space_prefix", True)
        prefix = SpacePrefix(at_start=prefixed, after_special=prefixed)
    else:
        raise ModelFileError(f"{path} has a tokenizer of the kind {kind!r}, which is not supported (only gpt2, llama).")
    user_defined = [texts[id] for id, type in odd.items() if type == _Type.USER_DEFINED]
    backend.add_tokens([AddedToken(text, normalized=False) for text in user_defined])

    def id_of(name: str) -> int | None:
        id = metadata.get(f"tokenizer.ggml.{name}_token_id")
        return id if isinstance(id, int) and 0 <= id < len(texts) else None

    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    return Vocabulary(
        backend=backend,
        pieces=pieces,
        specials=specials,
        missing_bytes=missing,
        space_mark=kind == "llama",
        space_prefix=prefix,
        bos_id=id_of("bos"),
        eos_ids=turn_ends(specials, map(id_of, ("eos", "eot", "eom"))),
        adds_bos=metadata.get("tokenizer.ggml.add_bos_token", adds_bos),
        names={name: texts[id] for name, key in names.items() if (id := id_of(key)) is not None},
        chat_template=template if isinstance(template := metadata.get("tokenizer.chat_template"), str) else None,
        fingerprint=_fingerprint(metadata),
    )


def _need(metadata: Mapping[str, Any], key: str, path: Path) -> Any:
    if key not in metadata:
        raise ModelFileError(f"{path} has no {key}: its tokenizer is not complete.")
    return metadata[key]


def _need_list(metadata: Mapping[str, Any], key: str, kind: type, path: Path, length: int | None = None) -> list[Any]:
    value = _need(metadata, key, path)
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise ModelFileError(f"{path} is damaged: {key} is not a list of {kind.__name__}.")
    if length is not None and len(value) != length:
        raise ModelFileError(f"{path} is damaged: {key} has {len(value)} entries for {length} tokens.")
    return value


def _word_split(metadata: Mapping[str, Any], path: Path) -> WordSplit:
    name = _need(metadata, "tokenizer.ggml.pre", path)
    if not isinstance(name, str) or name not in WORD_SPLITS:
        raise ModelFileError(
            f"{path} splits text into words in a way that is not known here (tokenizer.ggml.pre is {name!r}; known:"
            f" {', '.join(WORD_SPLITS)})."
        )
    return WORD_SPLITS[name]


def _merges_by_score(ids: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return the merges that SentencePiece's scores imply: any two pieces that make a third, best score first."""
    merges = []
    for text, id in ids.items():
        halves = ((text[:i], text[i:]) for i in range(1, len(text)))
        pairs = [(ids[left], ids[right], left, right) for left, right in halves if left in ids and right in ids]
        merges += [(-scores[id], *pair) for pair in pairs]
    merges.sort(key=lambda merge: merge[:3])
    return [(left, right) for _, _, _, left, right in merges]


def _fingerprint(metadata: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for key in sorted(key for key in metadata if key.startswith("tokenizer.ggml.")):
        value = metadata[key]
        if not isinstance(value, list):
            data = repr(value).encode()
        elif value and isinstance(value[0], str):
            data = array("Q", map(len, value)).tobytes() + "".join(value).encode()
        else:
            data = array("d", value).tobytes()
        digest.update(f"{key} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()
