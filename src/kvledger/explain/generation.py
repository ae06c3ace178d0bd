"""One token after the other on a real model, each computed twice: with the cache, and from the first token again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvledger.clock import Clock
from kvledger.errors import ExplainError
from kvledger.model import reference
from kvledger.model.batch import Run
from kvledger.model.config import ModelConfig
from kvledger.model.kv import KVPool
from kvledger.model.llama import LlamaModel
from kvledger.model.weights import Weights

MOST_LOOKED_AT = 64
"""Tokens up to which attention is worked out by the reference, whose cost grows with their square."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one step took: tokens computed, multiply-adds, bytes of KV of earlier steps read, bytes of KV written."""

    tokens: int
    multiply_adds: int
    kv_read: int
    kv_written: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Step:
    """The step that chose `token` behind `length` tokens. `is_same`: both ways gave the same logits, bit for bit."""

    length: int
    token: int
    with_cache: Work
    without_cache: Work
    is_same: bool


@dataclass(frozen=True, slots=True)
class Appended:
    """What a layer keeps of one token: lengths (L2 norms) of its key and value, all heads, and the bytes they take."""

    layer: int
    key_norm: float
    value_norm: float
    bytes: int


@dataclass(frozen=True)
class Generation:
    """A prompt continued step by step. `tokens` are prompt and answer; `attention` is [head, position, position] of
    layer `layer` (None for texts too long for the reference), and `agreed` the number of steps whose choice the
    float64 reference shares."""

    config: ModelConfig
    kv_bytes_per_token: int
    prompt_tokens: int
    tokens: tuple[int, ...]
    steps: tuple[Step, ...]
    appended: tuple[Appended, ...]
    layer: int
    attention: NDArray[np.float64] | None
    agreed: int | None


def generate(
    weights: Weights,
    model: LlamaModel,
    prompt: Sequence[int],
    *,
    steps: int,
    stop: frozenset[int],
    layer: int | None,
    clock: Clock,
) -> Generation:
    """Continue `prompt` by up to `steps` tokens, the likeliest each time, ending early at one of `stop`.

    Raises `ExplainError` for an empty prompt, one too long for the model, and a layer that is not there.
    """
    config = model.config
    layer = config.num_layers // 2 if layer is None else layer
    if not prompt:
        raise ExplainError("The text has no tokens: give at least one word.")
    if steps < 1:
        raise ExplainError(f"--steps is {steps}: 1 or more is needed.")
    if not 0 <= layer < config.num_layers:
        raise ExplainError(f"--layer is {layer}: this model has the layers 0 to {config.num_layers - 1}.")
    if len(prompt) + steps > model.context:
        raise ExplainError(
            f"{len(prompt)} tokens and {steps} steps do not fit into the {model.context} tokens of this model: give"
            " less text or fewer --steps."
        )
    num_blocks = -(-(len(prompt) + steps) // KVPool.block_size)
    table = np.arange(num_blocks, dtype=np.int32)
    kept, scratch = KVPool(config, num_blocks), KVPool(config, num_blocks)
    per_token = kept.bytes_per_block // KVPool.block_size
    tokens = list(prompt)
    done: list[Step] = []
    while len(done) < steps and not (done and tokens[-1] in stop):
        known = len(tokens) - 1 if done else 0  # whose K and V an earlier step wrote
        cached_logits, seconds = _run(model, kept, tokens, known, table, clock)
        with_cache = _work(config, per_token, known, len(tokens), seconds)
        logits, seconds = _run(model, scratch, tokens, 0, table, clock)
        without = _work(config, per_token, 0, len(tokens), seconds)
        chosen = int(logits.argmax())
        done.append(Step(len(tokens), chosen, with_cache, without, bool(np.array_equal(cached_logits, logits))))
        tokens.append(chosen)
    last = len(tokens) - 2  # the last position whose K and V are written
    attention, agreed = _looked_at(weights, tokens, len(prompt), layer)
    return Generation(
        config,
        per_token,
        len(prompt),
        tuple(tokens),
        tuple(done),
        tuple(_appended(kept, config, last)),
        layer,
        attention,
        agreed,
    )


def step_multiply_adds(config: ModelConfig, known: int, length: int) -> int:
    """Multiply-adds of computing positions `known` to `length` - 1, and the logits of the last.

    Per token all matrices of all layers; per token and token it sees, in every head, a product of query and key and
    one of weight and value.
    """
    matrices = 2 * config.hidden_size * (config.q_size + config.kv_size) + 3 * config.hidden_size * config.ffn_size
    seen = sum(min(position + 1, config.sliding_window or length) for position in range(known, length))
    per_layer = (length - known) * matrices + 2 * config.q_size * seen
    return config.num_layers * per_layer + config.vocab_size * config.hidden_size


def total_multiply_adds(config: ModelConfig, prompt: int, length: int) -> tuple[int, int]:
    """Multiply-adds of everything up to a text of `length` tokens, with the cache and without."""
    with_cache = step_multiply_adds(config, 0, prompt)
    with_cache += sum(step_multiply_adds(config, at - 1, at) for at in range(prompt + 1, length))
    return with_cache, sum(step_multiply_adds(config, 0, at) for at in range(prompt, length))


def _work(config: ModelConfig, per_token: int, known: int, length: int, seconds: float) -> Work:
    computed = length - known
    read = min(known, config.sliding_window or known) * per_token
    return Work(computed, step_multiply_adds(config, known, length), read, computed * per_token, seconds)


def _run(
    model: LlamaModel, pool: KVPool, tokens: list[int], known: int, table: NDArray[np.int32], clock: Clock
) -> tuple[NDArray[np.float32], float]:
    run = Run(np.array(tokens[known:], np.int32), known, table)
    began = clock.monotonic()
    logits = model.forward([run], pool)
    seconds = clock.monotonic() - began
    return logits[0].copy(), seconds


def _appended(pool: KVPool, config: ModelConfig, position: int) -> list[Appended]:
    """What every layer of an f16 pool keeps of one position, as it lies in the block."""
    block, slot = divmod(position, KVPool.block_size)
    half = config.head_dim * KVPool.block_size
    layers = pool.data[block].reshape(config.num_layers, config.num_kv_heads, pool.head_bytes)
    stored = layers.view(np.float16)[..., : 2 * half].astype(np.float64)
    keys = stored[..., :half].reshape(config.num_layers, -1, config.head_dim, KVPool.block_size)[..., slot]
    values = stored[..., half:].reshape(config.num_layers, -1, KVPool.block_size, config.head_dim)[:, :, slot]
    num_bytes = pool.layer_bytes // KVPool.block_size
    return [
        Appended(i, float(np.linalg.norm(keys[i])), float(np.linalg.norm(values[i])), num_bytes)
        for i in range(config.num_layers)
    ]


def _looked_at(
    weights: Weights, tokens: Sequence[int], prompt: int, layer: int
) -> tuple[NDArray[np.float64] | None, int | None]:
    """The reference's attention in one layer, and how many of the choices it shares."""
    seen = tokens[:-1]  # the last token was chosen and not read
    if len(seen) > MOST_LOOKED_AT:
        return None, None
    heads: list[NDArray[np.float64]] = []

    def watch(at: int, head: int, shares: NDArray[np.float64]) -> None:
        if at == layer:
            heads.append(shares)

    logits = reference.logits(weights, seen, watch)
    chosen = logits[prompt - 1 :].argmax(axis=-1)
    return np.stack(heads), int((chosen == np.array(tokens[prompt:])).sum())
