"""The vocabulary in a `tokenizer.json` and its neighbours: byte-level BPE, and SentencePiece BPE with byte fallback."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def json_vocabulary(path: Path, config_path: Path | None = None) -> Vocabulary:
    """Build the vocabulary of the `tokenizer.json` at `path`; `tokenizer_config.json` adds names, BOS and template.

    Unicode normalisation that the file asks for (Qwen's NFC) is left out, as it is in GGUF files of the same models,
    so that text comes back exactly as it was. Raises `ModelFileError`.
    """
    data = _read_object(path)
    config = _read_object(config_path) if config_path is not None and config_path.exists() else {}
    kind = (data.get("model") or {}).get("type")
    if kind != "BPE":
        raise ModelFileError(f"{path} has a tokenizer of the kind {kind!r}, which is not supported (only BPE).")
    adds_bos = config.get("add_bos_token", _begins_with_special(data))
    byte_level = list(_steps(data.get("pre_tokenizer"), "ByteLevel"))
    if byte_level:
        data["normalizer"] = None
    prefix = _take_space_prefix(data)
    data |= {"post_processor": None, "decoder": None, "truncation": None, "padding": None}
    backend = build(path, lambda: Backend.from_str(json.dumps(data)))
    backend.encode_special_tokens = True  # the library's name for treating special tokens in a text as plain text
    ids = backend.get_vocab(with_added_tokens=True)
    added = backend.get_added_tokens_decoder()
    specials = {token.content: Special(id, token.lstrip, token.rstrip) for id, token in added.items() if token.special}
    texts = [""] * (max(ids.values(), default=-1) + 1)
    for text, id in ids.items():
        texts[id] = text
    if byte_level and not any(step.get("add_prefix_space") for step in byte_level):
        pieces, missing = byte_level_pieces(texts, added), missing_byte_letters(ids)
    elif not byte_level and data["model"].get("byte_fallback"):
        check_fallback(ids, path)
        pieces, missing = space_mark_pieces(texts, added), b""
    else:
        raise ModelFileError(f"{path} writes text neither byte by byte nor with byte fallback: it is not supported.")
    names = {
        name: token["content"] if isinstance(token, dict) else token
        for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        if (token := config.get(name)) is not None
    }
    bos_id, eos_id = (ids.get(names.get(name, "")) for name in ("bos_token", "eos_token"))
    return Vocabulary(
        backend=backend,
        pieces=pieces,
        specials=specials,
        missing_bytes=missing,
        space_mark=not byte_level,
        space_prefix=prefix,
        bos_id=bos_id,
        eos_ids=turn_ends(specials, [eos_id]),
        adds_bos=adds_bos and bos_id is not None,
        names=names,
        chat_template=_chat_template(config, path.with_name("chat_template.jinja")),
        fingerprint=hashlib.sha256(path.read_bytes()).hexdigest(),
    )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} is not a JSON object.")
    return value


def _steps(node: Any, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the steps of one kind in a normalizer, pre-tokenizer or post-processor, sequences opened up."""
    if isinstance(node, dict):
        if node.get("type") == kind:
            yield node
        for key in ("normalizers", "pretokenizers", "processors"):
            for step in node.get(key) or ():
                yield from _steps(step, kind)


def _take_space_prefix(data: dict[str, Any]) -> SpacePrefix:
    """Remove from `data` the step that puts a space before a text, and return where it would have done so."""
    prefix = SpacePrefix()
    for step in _steps(data.get("normalizer"), "Prepend"):
        step |= {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": SPACE_MARK}  # changes nothing
        prefix = SpacePrefix(at_start=True, after_special=True)
    for step in _steps(data.get("pre_tokenizer"), "Metaspace"):
        scheme = step.get("prepend_scheme", "always" if step.pop("add_prefix_space", True) else "never")
        step["prepend_scheme"] = "never"
        prefix = SpacePrefix(at_start=scheme != "never", after_special=scheme == "always", doubled=False)
    return prefix


def _begins_with_special(data: dict[str, Any]) -> bool:
    """Whether the file's own post-processor puts a special token before a text."""
    return any("SpecialToken" in step["single"][0] for step in _steps(data.get("post_processor"), "TemplateProcessing"))


def _chat_template(config: dict[str, Any], sibling: Path) -> str | None:
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    if template is None and sibling.exists():
        template = sibling.read_text(encoding="utf-8")
    return template
