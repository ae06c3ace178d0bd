"""The sampler against tables computed by hand, a naive full-sort oracle, and the distribution it must draw from."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.engine.request import Sampling
from kvledger.engine.sampler import Sampler
from kvledger.errors import InvalidRequestError


def logits_of(*probabilities: float) -> np.ndarray:
    """Logits whose softmax is `probabilities` (0 becomes a logit of -40)."""
    return np.array([math.log(p) if p else -40.0 for p in probabilities], dtype=np.float32)


def support(sampling_of, logits: np.ndarray, draws: int = 400) -> set[int]:
    """Every token seen over `draws` seeds."""
    return {Sampler(sampling_of(seed), [], logits.size).choose(logits).token for seed in range(draws)}


LADDER = logits_of(0.1, 0.4, 0.05, 0.3, 0.15)  # best to worst: 1, 3, 4, 0, 2


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"top_k": 1}, {1}),
        ({"top_k": 3}, {1, 3, 4}),
        ({"top_k": 5}, {0, 1, 2, 3, 4}),
        ({"top_k": 50}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.0}, {1}),
        ({"top_p": 0.39}, {1}),
        ({"top_p": 0.41}, {1, 3}),
        ({"top_p": 0.8}, {1, 3, 4}),  # 0.4 + 0.3 = 0.7 is not yet 0.8
        ({"top_p": 0.86}, {0, 1, 3, 4}),
        # top-p works on what top-k left: of {0.4, 0.3} the first holds 4/7 = 0.571
        ({"top_k": 2, "top_p": 0.57}, {1}),
        ({"top_k": 2, "top_p": 0.58}, {1, 3}),
        # min-p is relative to the best, 0.4: a quarter is 0.1, three quarters 0.3
        ({"min_p": 0.26}, {1, 3, 4}),
        ({"min_p": 0.24}, {0, 1, 3, 4}),
        ({"min_p": 0.76}, {1}),
        ({"min_p": 1.0}, {1}),
        ({"top_p": 0.86, "min_p": 0.26}, {1, 3, 4}),
        # temperature 0.5 squares the odds: 0.16 0.09 0.0225 0.01 0.0025 of 0.285, so 0.561 0.316 0.079 0.035 0.009
        ({"temperature": 0.5, "top_p": 0.56}, {1}),
        ({"temperature": 0.5, "top_p": 0.57}, {1, 3}),
        ({"temperature": 0.5, "top_p": 0.88}, {1, 3, 4}),
        ({"temperature": 0.0}, {1}),
        ({"temperature": 1e-6}, {1}),
        ({"temperature": 0.0, "top_p": 0.5, "top_k": 3}, {1}),
        # a bias of ln 10 multiplies the odds by ten: 0.5 for token 2 against 0.4
        ({"temperature": 0.0, "logit_bias": ((2, math.log(10)),)}, {2}),
        ({"logit_bias": ((1, -100.0), (3, -100.0))}, {0, 2, 4}),
    ],
)
def test_which_tokens_can_be_drawn(fields: dict, kept: set[int]) -> None:
    assert support(lambda seed: Sampling(**{"seed": seed, **fields}), LADDER) == kept


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"temperature": 0.0}, {1}),
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 2}),
        ({"top_k": 3}, {1, 2, 4}),
        ({"top_p": 0.25}, {1}),
        ({"top_p": 0.3}, {1, 2}),
        ({"top_p": 0.6}, {1, 2, 4}),
    ],
)
def test_ties_go_to_the_lowest_id(fields: dict, kept: set[int]) -> None:
    # 1, 2, 4 and 5 are equal at a quarter each; 0 and 3 are next to impossible
    logits = np.array([-40.0, 2.0, 2.0, -40.0, 2.0, 2.0], dtype=np.float32)
    assert support(lambda seed: Sampling(seed=seed, **fields), logits) == kept


def greedy_after(outputs: list[int], prompt: list[int], logits: list[float], **penalties: float) -> int:
    """The greedy token for `logits` once `outputs` have been sampled."""
    sampler = Sampler(Sampling(temperature=0.0, **penalties), prompt, len(logits))
    for token in outputs:
        forced = np.full(len(logits), -1000.0, dtype=np.float32)
        forced[token] = 1000.0
        assert sampler.choose(forced).token == token
    return sampler.choose(np.array(logits, dtype=np.float32)).token


@pytest.mark.parametrize(
    ("outputs", "prompt", "logits", "penalties", "token"),
    [
        # presence: once, however often: 3.0 - 1.0 = 2.0
        ([0], [], [3.0, 1.9], {"presence_penalty": 1.0}, 0),
        ([0], [], [3.0, 2.1], {"presence_penalty": 1.0}, 1),
        ([0, 0, 0], [], [3.0, 1.9], {"presence_penalty": 1.0}, 0),
        # frequency: per occurrence: 3.0 - 3 x 0.5 = 1.5
        ([0, 0, 0], [], [3.0, 1.4], {"frequency_penalty": 0.5}, 0),
        ([0, 0, 0], [], [3.0, 1.6], {"frequency_penalty": 0.5}, 1),
        # both: 3.0 - 2 x 0.5 - 0.25 = 1.75; a negative one rewards: 1.0 + 2 x 1.1 = 3.2
        ([0, 0], [], [3.0, 1.7], {"frequency_penalty": 0.5, "presence_penalty": 0.25}, 0),
        ([0, 0], [], [3.0, 1.8], {"frequency_penalty": 0.5, "presence_penalty": 0.25}, 1),
        ([1, 1], [], [3.0, 1.0], {"frequency_penalty": -1.1}, 1),
        # the prompt does not count for OpenAI's two, and does for the repetition penalty
        ([], [0, 0], [3.0, 2.9], {"presence_penalty": 2.0, "frequency_penalty": 2.0}, 0),
        ([], [0], [3.0, 2.6], {"repetition_penalty": 1.2}, 1),  # 3.0 / 1.2 = 2.5
        ([], [0, 0], [3.0, 2.4], {"repetition_penalty": 1.2}, 0),
        ([0], [], [3.0, 2.6], {"repetition_penalty": 1.2}, 1),
        # a negative logit is multiplied: -1.0 x 1.5 = -1.5
        ([], [0], [-1.0, -1.4], {"repetition_penalty": 1.5}, 1),
        ([], [0], [-1.0, -1.6], {"repetition_penalty": 1.5}, 0),
    ],
)
def test_penalties(
    outputs: list[int], prompt: list[int], logits: list[float], penalties: dict[str, float], token: int
) -> None:
    assert greedy_after(outputs, prompt, logits, **penalties) == token


def test_logprobs_are_those_of_the_raw_distribution() -> None:
    sampling = Sampling(temperature=0.0, logprobs=2, logit_bias=((2, 100.0),))
    choice = Sampler(sampling, [], 5).choose(LADDER)
    assert choice.token == 2
    assert choice.logprob is not None
    assert choice.logprob.logprob == pytest.approx(math.log(0.05), abs=1e-6)
    assert [(a.token, round(math.exp(a.logprob), 6)) for a in choice.alternatives] == [(1, 0.4), (3, 0.3)]


def test_logprobs_only_when_asked_and_alternatives_bounded_by_the_vocabulary() -> None:
    assert Sampler(Sampling(), [], 5).choose(LADDER).logprob is None
    assert Sampler(Sampling(logprobs=0), [], 5).choose(LADDER).alternatives == ()
    choice = Sampler(Sampling(logprobs=9), [], 5).choose(LADDER)
    assert [a.token for a in choice.alternatives] == [1, 3, 4, 0, 2]
    ties = Sampler(Sampling(logprobs=2), [], 4).choose(np.zeros(4, dtype=np.float32))
    assert [(a.token, a.logprob) for a in ties.alternatives] == [(0, -math.log(4)), (1, -math.log(4))]


def test_huge_logits_do_not_overflow() -> None:
    logits = np.array([-1e30, 3e38, 1e30], dtype=np.float32)
    choice = Sampler(Sampling(temperature=0.5, top_p=0.9, seed=1, logprobs=1), [], 3).choose(logits)
    assert choice.token == 1
    assert choice.logprob is not None
    assert choice.logprob.logprob == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_a_fault_and_not_a_token(bad: float) -> None:
    logits = np.array([0.0, bad, 1.0], dtype=np.float32)
    with pytest.raises(FloatingPointError):
        Sampler(Sampling(), [], 3).choose(logits)


def test_the_logits_are_left_alone() -> None:
    before = LADDER.copy()
    sampling = Sampling(top_p=0.9, repetition_penalty=2.0, frequency_penalty=1.0, logit_bias=((0, 5.0),), logprobs=3)
    sampler = Sampler(sampling, [1], 5)
    sampler.choose(LADDER)
    sampler.choose(LADDER)
    assert np.array_equal(LADDER, before)


def test_same_seed_same_tokens_and_another_seed_another() -> None:
    logits = np.zeros(1000, dtype=np.float32)

    def run(seed: int | None) -> list[int]:
        sampler = Sampler(Sampling(seed=seed), [], logits.size)
        return [sampler.choose(logits).token for _ in range(20)]

    assert run(7) == run(7)
    assert run(7) != run(8)
    assert run(-1) == run(2**64 - 1)
    assert run(None) != run(None)


def test_a_draw_depends_on_the_output_index_and_not_on_earlier_logits() -> None:
    flat, peaked = np.zeros(1000, dtype=np.float32), np.zeros(1000, dtype=np.float32)
    peaked[3] = 100.0
    one, two = (Sampler(Sampling(seed=11), [], 1000) for _ in range(2))
    one.choose(flat)
    two.choose(peaked)
    assert one.choose(flat) == two.choose(flat)


def test_golden_draws() -> None:
    """Fixed numbers: a seed that a caller stored must keep its meaning."""
    logits = np.linspace(0, 3, 700, dtype=np.float32)
    sampler = Sampler(Sampling(seed=42), [], 700)
    assert [sampler.choose(logits).token for _ in range(6)] == [656, 486, 670, 191, 697, 692]


@pytest.mark.parametrize("size", [8, 255, 256, 257, 700])
def test_the_drawn_distribution_is_the_softmax(size: int) -> None:
    """Pearson's chi-square over eight groups; 24.3 is the 0.1 % point for seven degrees of freedom."""
    logits = np.sin(np.arange(size, dtype=np.float32) * 1.7) * 2
    probabilities = np.exp(logits.astype(np.float64) / 0.8)
    probabilities /= probabilities.sum()
    group = np.arange(size) % 8
    expected = np.bincount(group, probabilities) * 4000
    sampler = Sampler(Sampling(seed=5, temperature=0.8), [], size)
    drawn = np.bincount([group[sampler.choose(logits).token] for _ in range(4000)], minlength=8)
    assert ((drawn - expected) ** 2 / expected).sum() < 24.3


def naive(weights: np.ndarray, sampling: Sampling, uniform: float) -> int:
    """Sort everything, filter one by one, walk the cumulative sum in order of id."""
    order = sorted(range(weights.size), key=lambda i: (-weights[i], i))
    if sampling.top_k:
        order = order[: sampling.top_k]
    mass, held, nucleus = math.fsum(weights[order]), 0.0, []
    for index in order:
        nucleus.append(index)
        held += float(weights[index])
        if held >= sampling.top_p * mass:
            break
    kept = sorted(i for i in (nucleus if sampling.top_p < 1 else order) if weights[i] >= sampling.min_p)
    target, held = uniform * math.fsum(weights[kept]), 0.0
    for index in kept:
        held += float(weights[index])
        if held > target:
            return index
    raise AssertionError("unreachable")


@given(
    scores=st.lists(st.integers(-24, 24), min_size=1, max_size=600),
    top_k=st.integers(0, 12),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.95, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    seed=st.integers(0, 2**64 - 1),
)
def test_equals_the_naive_sampler(
    scores: list[int], top_k: int, top_p: float, min_p: float, temperature: float, seed: int
) -> None:
    logits = np.array(scores, dtype=np.float32) / 4
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    weights = np.exp((logits - logits.max()) / np.float32(temperature)).astype(np.float64)
    uniform = int(np.random.Philox(key=seed, counter=0).random_raw() >> np.uint64(11)) * 2.0**-53
    assert Sampler(sampling, [], logits.size).choose(logits).token == naive(weights, sampling, uniform)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", math.nan),
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("presence_penalty", math.nan),
        ("frequency_penalty", math.inf),
        ("logprobs", -1),
        ("logit_bias", ((0, math.nan),)),
    ],
)
def test_values_out_of_range_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=field) as caught:
        Sampling(**{field: value})
    assert caught.value.param == field


@pytest.mark.parametrize("token", [-1, 5])
def test_a_bias_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(InvalidRequestError, match="0 to 4"):
        Sampler(Sampling(logit_bias=((token, 1.0),)), [], 5)
