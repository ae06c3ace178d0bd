"""Two prompts as chains of blocks, and where the second leaves the first: what the prompt cache itself says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvledger.cache import Lease, Miss, Namespace, PromptCache
from kvledger.cache.digest import chain_digests
from kvledger.clock import ManualClock
from kvledger.errors import ExplainError
from kvledger.explain.pieces import visible
from kvledger.page.blocks import Block, Heading, Page, Paragraph, Table
from kvledger.text.tokenizer import Tokenizer

_SHOWN_AROUND = 4
_DIGEST_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Chain:
    """A prompt cut into blocks: its tokens, and the digest of every full block (hex)."""

    tokens: tuple[int, ...]
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The chains of an earlier and a later prompt, and what the cache reuses of the first for the second.

    `shared` leading blocks are shared as they are; of the block after them the first `partial` tokens are copied, or
    the block is taken over if nobody else can need it. `common` is the number of leading tokens that both have; `miss`
    says why no more than `reused` are reused.
    """

    earlier: Chain
    later: Chain
    block_size: int
    common: int
    reused: int
    shared: int
    partial: int
    is_copied: bool
    miss: Miss | None


def compare(tokenizer: Tokenizer, earlier: str, later: str, *, block_size: int = 16) -> Comparison:
    """Put `earlier` through a prompt cache, then `later`; raises `ExplainError` for a prompt without tokens."""
    if block_size < 1:
        raise ExplainError(f"--block-size is {block_size}: 1 or more is needed.")
    first, second = _tokens(tokenizer, earlier, "A"), _tokens(tokenizer, later, "B")
    namespace = Namespace(weights="", tokenizer=tokenizer.fingerprint, adapter="", layout="", tenant="")
    num_blocks = -(-len(first) // block_size) + -(-len(second) // block_size) + 1
    cache = PromptCache(num_blocks, block_size=block_size, bytes_per_block=1, clock=ManualClock(), ttl=None)
    _leave_behind(cache, namespace, first)
    lease = cache.acquire(namespace, second)
    assert isinstance(lease, Lease), "the cache has room for both"
    pairs = zip(first, second, strict=False)
    common = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
    root = namespace.digest()
    result = Comparison(
        Chain(first, tuple(digest.hex() for digest in chain_digests(root, first, block_size))),
        Chain(second, tuple(digest.hex() for digest in chain_digests(root, second, block_size))),
        block_size,
        common,
        lease.reused,
        *divmod(lease.reused, block_size),
        bool(lease.copies),
        lease.miss,
    )
    cache.release(lease)
    return result


def _tokens(tokenizer: Tokenizer, text: str, name: str) -> tuple[int, ...]:
    start = [tokenizer.bos_id] if tokenizer.adds_bos and tokenizer.bos_id is not None else []
    tokens = (*start, *tokenizer.encode(text, special=True))
    if not tokens:
        raise ExplainError(f"{name} has no tokens: give a text, or @ and the name of a file.")
    return tokens


def _leave_behind(cache: PromptCache, namespace: Namespace, tokens: Sequence[int]) -> None:
    """What a request with this prompt leaves in the cache."""
    lease = cache.acquire(namespace, tokens)
    assert isinstance(lease, Lease), "the cache is empty and has room"
    cache.commit(lease, tokens, len(tokens))
    cache.release(lease)


def prefix_record(comparison: Comparison, tokenizer: Tokenizer) -> dict[str, Any]:
    """A comparison as plain values."""
    miss = comparison.miss
    return {
        "block_size": comparison.block_size,
        "a": {"tokens": len(comparison.earlier.tokens), "blocks": list(comparison.earlier.digests)},
        "b": {"tokens": len(comparison.later.tokens), "blocks": list(comparison.later.digests)},
        "common_tokens": comparison.common,
        "reused_tokens": comparison.reused,
        "shared_blocks": comparison.shared,
        "partial_tokens": comparison.partial,
        "fresh_tokens": len(comparison.later.tokens) - comparison.reused,
        "miss": None
        if miss is None
        else {
            "reason": miss.reason.value,
            "position": miss.position,
            "a_token": _named(tokenizer, comparison.earlier, miss.position),
            "b_token": _named(tokenizer, comparison.later, miss.position),
        },
    }


def prefix_page(comparison: Comparison, tokenizer: Tokenizer) -> Page:
    """A comparison for a person."""
    size, later = comparison.block_size, comparison.later.tokens
    how = "copied" if comparison.is_copied else "with the block taken over"
    blocks: list[Block] = [
        Paragraph(
            f"A has {len(comparison.earlier.tokens):,} tokens, B {len(later):,}; blocks of {size}. A block's digest"
            " covers its own tokens and, through the block before it, all earlier ones: where one token differs, every"
            " digest from there on does."
        ),
        _chain_table(comparison, tokenizer),
        Heading("Where it breaks"),
        Paragraph(_break(comparison, tokenizer)),
        Heading("What the cache reuses"),
        Paragraph(
            f"{comparison.reused:,} of B's {len(later):,} tokens. Whole blocks shared as they are:"
            f" {comparison.shared:,}. Tokens of the block after them, {how}: {comparison.partial}."
            f" Left to compute: {len(later) - comparison.reused:,}, of which the last always is: the answer begins with"
            " its logits."
        ),
        Paragraph(
            "Reuse to the token is this server's. Engines that share whole blocks only stop at the last block boundary"
            f" before the break, here at {comparison.common // size * size:,}. These digests cover the tokenizer and"
            " the tokens; a server's also cover weights, layout and tenant."
        ),
    ]
    return Page("Two prompts as chains of blocks", blocks)


def _chain_table(comparison: Comparison, tokenizer: Tokenizer) -> Table:
    size = comparison.block_size
    longest = max(len(comparison.earlier.tokens), len(comparison.later.tokens))
    broken = comparison.common // size
    wanted = [i for i in range(-(-longest // size)) if i < _SHOWN_AROUND or abs(i - broken) <= _SHOWN_AROUND]
    rows: list[tuple[str, ...]] = []
    tones: list[tuple[str, ...]] = []
    before = -1
    for i in wanted:
        if i > before + 1:
            rows.append(("...", f"{i - before - 1} more", "", "", ""))
            tones.append(("dim",) * 5)
        before = i
        a, b = (_block(chain, i, size, tokenizer) for chain in (comparison.earlier, comparison.later))
        same = a == b and comparison.common >= min((i + 1) * size, len(comparison.later.tokens))
        rows.append((str(i), a[0], b[0], "same" if same else "", b[1] or a[1]))
        tones.append(("", *(("good",) * 3 if same else ("bad",) * 3), ""))
    return Table(("block", "A", "B", "", "text of B"), rows, numeric=(0,), tones=tones)


def _block(chain: Chain, index: int, size: int, tokenizer: Tokenizer) -> tuple[str, str]:
    """The digest of a block, shortened (or that it is open), and its text."""
    tokens = chain.tokens[index * size : (index + 1) * size]
    if not tokens:
        return "", ""
    text = visible(b"".join(map(tokenizer.token_bytes, tokens)))
    name = chain.digests[index][:_DIGEST_SHOWN] if index < len(chain.digests) else f"open, {len(tokens)} tokens"
    return name, text if len(text) <= 80 else f"{text[:77]}..."


def _break(comparison: Comparison, tokenizer: Tokenizer) -> str:
    at, size = comparison.common, comparison.block_size
    a, b = comparison.earlier.tokens, comparison.later.tokens
    if at == len(a) == len(b):
        return "Nowhere: the prompts are the same, token by token."
    if at == len(a):
        return f"Nowhere: B goes on where A ends, after {at:,} tokens."
    if at == len(b):
        return f"Nowhere: B ends within A, after {at:,} tokens."
    before = visible(b"".join(map(tokenizer.token_bytes, b[max(0, at - 8) : at])))
    went, goes = visible(tokenizer.token_bytes(a[at])), visible(tokenizer.token_bytes(b[at]))
    return (
        f"At token {at:,}, in block {at // size} ({at % size} tokens into it)"
        + (f", after {before!r}" if before else "")
        + f": A goes on with {went!r} ({a[at]}), B with {goes!r} ({b[at]})."
    )


def _named(tokenizer: Tokenizer, chain: Chain, position: int) -> dict[str, Any] | None:
    if position >= len(chain.tokens):
        return None
    id = chain.tokens[position]
    return {"id": id, "text": tokenizer.token_bytes(id).decode("utf-8", "replace")}
