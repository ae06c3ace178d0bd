"""Which token comes next: from a row of logits to one id, the same for the same seed whatever else is in the batch.

The order of the steps is that of vLLM and Hugging Face: logit bias, penalties, temperature, top-k, top-p over what
top-k left, min-p. Every tie goes to the lowest id.

Randomness is counter-based (Philox, Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): the number
for output `i` depends on the seed and on `i` alone, so neither other requests nor a preemption can shift it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvledger.engine.request import Sampling, TokenLogprob
from kvledger.errors import InvalidRequestError

Floats = NDArray[np.float32]
Ids = NDArray[np.intp]

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy: float32 could not tell the difference, and would overflow near zero."""

DRAW_STRIDE = 256
"""Weights summed together before the cumulative sum: a cumulative sum is serial, a row sum is not."""

NUCLEUS_GUESS = 64
"""How far above the safe line the nucleus is looked for first."""


@dataclass(frozen=True)
class Choice:
    """A sampled token, with its natural-log probability and the most likely tokens where these were asked for."""

    token: int
    logprob: TokenLogprob | None = None
    alternatives: tuple[TokenLogprob, ...] = ()


class Sampler:
    """Chooses the tokens of one request and remembers what its penalties need.

    Raises `InvalidRequestError` when a biased token is outside the vocabulary.
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int], vocab_size: int) -> None:
        self._sampling = sampling
        self._seed = secrets.randbits(64) if sampling.seed is None else sampling.seed % 2**64
        self._index = 0
        self._bias_ids = np.array([token for token, _ in sampling.logit_bias], dtype=np.intp)
        self._bias = np.array([bias for _, bias in sampling.logit_bias], dtype=np.float32)
        if self._bias_ids.size and not (self._bias_ids.min() >= 0 and self._bias_ids.max() < vocab_size):
            raise InvalidRequestError(
                f"logit_bias names a token outside the model's vocabulary: use ids from 0 to {vocab_size - 1}.",
                param="logit_bias",
            )
        self._counts: NDArray[np.int32] | None = None
        self._seen: NDArray[np.bool_] | None = None
        if sampling.presence_penalty or sampling.frequency_penalty:
            self._counts = np.zeros(vocab_size, dtype=np.int32)
        if sampling.repetition_penalty != 1:
            self._seen = np.zeros(vocab_size, dtype=np.bool_)
            self._seen[np.asarray(prompt, dtype=np.intp)] = True

    def choose(self, logits: Floats) -> Choice:
        """The next token for `logits` [vocab_size], which are not changed.

        Raises `FloatingPointError` when the logits hold no finite maximum (a fault of the model).
        """
        sampling = self._sampling
        scores = self._adjusted(logits)
        token = int(scores.argmax())
        if not np.isfinite(scores[token]):
            raise FloatingPointError("the model's logits are not finite")
        if sampling.temperature >= GREEDY_BELOW:
            weights = scores - scores[token]
            with np.errstate(over="ignore"):  # a logit hopelessly below the best: -inf, whose weight is 0
                weights /= np.float32(sampling.temperature)
            np.exp(weights, out=weights)
            kept = _kept(weights, sampling)
            uniform = _uniform(self._seed, self._index)
            token = _draw(weights, uniform) if kept is None else int(kept[_draw(weights[kept], uniform)])
        self._index += 1
        if self._counts is not None:
            self._counts[token] += 1
        if self._seen is not None:
            self._seen[token] = True
        if sampling.logprobs is None:
            return Choice(token)
        return _with_logprobs(token, logits, sampling.logprobs)

    def _adjusted(self, logits: Floats) -> Floats:
        """Logits after bias and penalties: a copy where either applies, else the array itself."""
        sampling = self._sampling
        if not self._bias.size and self._counts is None and self._seen is None:
            return logits
        scores = logits.copy()
        np.add.at(scores, self._bias_ids, self._bias)
        if self._seen is not None:
            seen = np.flatnonzero(self._seen)
            penalty = np.float32(sampling.repetition_penalty)
            scores[seen] = np.where(scores[seen] < 0, scores[seen] * penalty, scores[seen] / penalty)
        if self._counts is not None:
            used = np.flatnonzero(self._counts > 0)
            scores[used] -= np.float32(sampling.frequency_penalty) * self._counts[used].astype(np.float32)
            scores[used] -= np.float32(sampling.presence_penalty)
        return scores


def _uniform(seed: int, index: int) -> float:
    """A number in [0, 1) on a grid of 2**-53, a function of `seed` and `index` alone."""
    return float(int(np.random.Philox(key=seed, counter=index).random_raw()) >> 11) * 2.0**-53


def _kept(weights: Floats, sampling: Sampling) -> Ids | None:
    """Ids that survive top-k, top-p and min-p, ascending; None for all. `weights` are relative to the largest, 1."""
    kept: Ids | None = None
    if 0 < sampling.top_k < weights.size:
        kept = _largest(weights, sampling.top_k)
    if sampling.top_p < 1:
        among = weights if kept is None else weights[kept]
        nucleus = _nucleus(among, sampling.top_p)
        kept = nucleus if kept is None else kept[nucleus]
    if sampling.min_p > 0:
        kept = np.flatnonzero(weights >= sampling.min_p) if kept is None else kept[weights[kept] >= sampling.min_p]
    return kept


def _largest(weights: Floats, count: int) -> Ids:
    """Indices of the `count` largest weights, ascending; of equal weights the lowest indices."""
    return _down_to(weights, np.partition(weights, weights.size - count)[weights.size - count], count)


def _down_to(weights: Floats, cutoff: np.float32, count: int) -> Ids:
    """Indices of the `count` largest weights when the smallest of them is `cutoff`, ascending."""
    kept = np.flatnonzero(weights >= cutoff)
    surplus = kept.size - count
    if surplus:
        kept = np.delete(kept, np.flatnonzero(weights[kept] == cutoff)[-surplus:])
    return kept


def _nucleus(weights: Floats, top_p: float) -> Ids:
    """Indices, ascending, of the smallest set of largest weights that holds `top_p` of the mass (at least one).

    Weights under (1 - top_p) * mass / n hold less than 1 - top_p together, so the set lies above that line, and often
    above a much higher one: only those few are sorted.
    """
    mass = float(weights.sum(dtype=np.float64))
    line = min(1.0, (1 - top_p) * mass / weights.size)
    above = np.flatnonzero(weights >= min(1.0, NUCLEUS_GUESS * line))
    if weights[above].sum(dtype=np.float64) < top_p * mass:
        above = np.flatnonzero(weights >= line)
    descending = np.sort(weights[above])[::-1]
    held = np.cumsum(descending, dtype=np.float64)
    count = min(int(np.searchsorted(held, top_p * mass)) + 1, above.size)
    return above[_down_to(weights[above], descending[count - 1], count)]


def _draw(weights: Floats, uniform: float) -> int:
    """The first index whose cumulative weight exceeds `uniform` of the total: weight 0 is never drawn."""
    whole = weights.size - weights.size % DRAW_STRIDE
    strides = weights[:whole].reshape(-1, DRAW_STRIDE).sum(axis=1, dtype=np.float64)
    held = np.cumsum(np.append(strides, weights[whole:].sum(dtype=np.float64)))
    target = uniform * held[-1]
    stride = int(np.searchsorted(held, target, side="right"))
    start = stride * DRAW_STRIDE
    inside = np.cumsum(weights[start : start + DRAW_STRIDE], dtype=np.float64)
    before = held[stride - 1] if stride else 0.0
    offset = int(np.searchsorted(inside, target - before, side="right"))
    if offset == inside.size:  # the two sums round differently in the last place
        offset = int(np.flatnonzero(weights[start : start + DRAW_STRIDE])[-1])
    return start + offset


def _with_logprobs(token: int, logits: Floats, alternatives: int) -> Choice:
    """`token` with log probabilities under the softmax of the unadjusted `logits`."""
    top = np.float64(logits.max())
    log_mass = top + np.log(np.exp(logits - np.float32(top)).sum(dtype=np.float64))
    likely = _largest(logits, min(alternatives, logits.size)) if alternatives else np.empty(0, dtype=np.intp)
    likely = likely[np.argsort(-logits[likely], kind="stable")]

    def logprob(index: int) -> TokenLogprob:
        return TokenLogprob(index, min(0.0, float(np.float64(logits[index]) - log_mass)))

    return Choice(token, logprob(token), tuple(logprob(int(index)) for index in likely))
