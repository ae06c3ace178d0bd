"""Attention by hand: three tokens of four dimensions, every number on the page.

The example goes round with K2 and K3 that do not follow from its own W_K, and with attention weights that the formula
does not give. Both are said where they occur, and the same example is then worked out with K = e W_K throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.model.reference import softmax
from kvledger.page.blocks import Block, Heading, Page, Paragraph, Table

Array = NDArray[np.float64]

EMBEDDINGS = np.array([[1.0, 0.0, 0.5, 0.3], [0.2, 1.0, 0.1, 0.8], [0.6, 0.3, 1.0, 0.1]])
W_K = np.array([[0.1, 0.2, 0.0, 0.3], [0.4, 0.1, 0.2, 0.0], [0.0, 0.3, 0.1, 0.2], [0.2, 0.0, 0.4, 0.1]])
PRINTED_K = np.array([[0.16, 0.35, 0.17, 0.43], [0.30, 0.15, 0.38, 0.14], [0.12, 0.45, 0.13, 0.38]])
V = np.array([[0.50, 0.20, 0.10, 0.40], [0.30, 0.60, 0.40, 0.10], [0.70, 0.10, 0.80, 0.30]])
Q3 = np.array([0.25, 0.40, 0.18, 0.55])


@dataclass(frozen=True)
class Attended:
    """One query looking at all keys: scores q k, the same over sqrt(dimension), their softmax, and the sum of values
    by it."""

    keys: Array
    scores: Array
    scaled: Array
    weights: Array
    output: Array


def attend(query: Array, keys: Array, values: Array) -> Attended:
    """softmax(q K^T / sqrt(d)) V for one query (Vaswani et al., arXiv:1706.03762)."""
    scores = keys @ query
    scaled = scores / np.sqrt(len(query))
    weights = softmax(scaled)
    return Attended(keys, scores, scaled, weights, weights @ values)


def projected_keys() -> Array:
    """K = e W_K for the three tokens."""
    keys: Array = EMBEDDINGS @ W_K
    return keys


def attention_record() -> dict[str, Any]:
    """The worked example as plain values."""
    return {
        "embeddings": EMBEDDINGS.tolist(),
        "w_k": W_K.tolist(),
        "k_from_w_k": _rounded(projected_keys()),
        "k_as_printed": PRINTED_K.tolist(),
        "follows_from_w_k": [bool(np.allclose(a, b)) for a, b in zip(projected_keys(), PRINTED_K, strict=True)],
        "v": V.tolist(),
        "q3": Q3.tolist(),
        "with_printed_k": _record(attend(Q3, PRINTED_K, V)),
        "with_k_from_w_k": _record(attend(Q3, projected_keys(), V)),
        "softmax_without_scaling": _rounded(softmax(attend(Q3, PRINTED_K, V).scores)),
    }


def attention_page() -> Page:
    """The worked example for a person."""
    keys, printed, own = projected_keys(), attend(Q3, PRINTED_K, V), attend(Q3, projected_keys(), V)
    blocks: list[Block] = [
        Paragraph("Three tokens, four dimensions, one head. The third token asks; all three may answer."),
        Heading("1. Keys: K = e W_K"),
        _matrix("e", EMBEDDINGS, 1),
        _matrix("W_K row", W_K, 1),
        Paragraph("K1[1] = " + _dot(EMBEDDINGS[0], W_K[:, 0], 1, keys[0, 0], 2)),
        _matrix("K", keys, 2),
        Paragraph(
            f"Only K1 is the one usually printed with this example. K2 is printed as {_vector(PRINTED_K[1], 2)} and K3"
            f" as {_vector(PRINTED_K[2], 2)}: neither follows from this W_K. Steps 2 to 5 take them as given; step 6"
            " does everything again with the keys that do follow.",
            is_warning=True,
        ),
        Heading("2. Scores: q k"),
        _matrix("", np.array([Q3]), 2, names=["Q3"]),
        _matrix("K as printed", PRINTED_K, 2),
        *(
            Paragraph(f"Q3 K{i + 1} = " + _dot(Q3, PRINTED_K[i], 2, printed.scores[i], 4))
            for i in range(len(PRINTED_K))
        ),
        Heading("3. Scaling by sqrt(4) = 2"),
        Paragraph(
            "\n".join(
                f"{score:.4f} / 2 = {half:.5f}" for score, half in zip(printed.scores, printed.scaled, strict=True)
            )
        ),
        Heading("4. Softmax"),
        _softmax(printed),
        Paragraph(
            f"The weights are {_vector(printed.weights, 3)}: nearly even, because the scores differ by"
            f" {printed.scaled.max() - printed.scaled.min():.3f} only. Copies of this example often print others; these"
            " are what the formula gives.",
            is_warning=True,
        ),
        Heading("5. Output: the weighted sum of values"),
        _matrix("V", V, 2),
        *(
            Paragraph(f"out[{j + 1}] = " + _dot(printed.weights, V[:, j], (4, 2), printed.output[j], 4))
            for j in range(V.shape[1])
        ),
        Paragraph(f"out = {_vector(printed.output, 4)}"),
        Heading("6. The same with keys that follow from W_K"),
        _matrix("K = e W_K", keys, 2),
        _softmax(own),
        Paragraph(f"out = {_vector(own.output, 4)}"),
        Heading("What a cache keeps of it"),
        Paragraph(
            "For the fourth token the model computes q4, k4 and v4. K1 to K3 and V1 to V3 do not change, whatever"
            " comes after them: a key and a value depend on their own token and on those before it. That is why"
            " they can be kept, and why Q3 is of no more use: nobody asks its question again. A KV cache holds K"
            " and V: here 2 x 4 numbers a token."
        ),
    ]
    return Page("Attention, three tokens by hand", blocks)


def _softmax(attended: Attended) -> Table:
    exponentials = np.exp(attended.scaled)
    rows = [
        (
            f"K{i + 1}",
            f"{attended.scores[i]:.4f}",
            f"{attended.scaled[i]:.5f}",
            f"{exponentials[i]:.5f}",
            f"{weight:.5f}",
        )
        for i, weight in enumerate(attended.weights)
    ]
    rows.append(("sum", "", "", f"{exponentials.sum():.5f}", f"{attended.weights.sum():.5f}"))
    return Table(("", "score", "/ 2", "exp", "weight"), rows)


def _matrix(name: str, values: Array, digits: int, names: Sequence[str] = ()) -> Table:
    rows = [
        (names[i] if names else f"{i + 1}", *(f"{value:.{digits}f}" for value in row)) for i, row in enumerate(values)
    ]
    return Table((name, *(str(j + 1) for j in range(values.shape[1]))), rows)


def _dot(a: Array, b: Array, digits: int | tuple[int, int], result: float, result_digits: int) -> str:
    left, right = digits if isinstance(digits, tuple) else (digits, digits)
    terms = " + ".join(f"{x:.{left}f} x {y:.{right}f}" for x, y in zip(a, b, strict=True))
    return f"{terms} = {result:.{result_digits}f}"


def _vector(values: Array, digits: int) -> str:
    return "[" + ", ".join(f"{value:.{digits}f}" for value in values) + "]"


def _record(attended: Attended) -> dict[str, Any]:
    return {
        "scores": _rounded(attended.scores),
        "scaled": _rounded(attended.scaled),
        "weights": _rounded(attended.weights),
        "output": _rounded(attended.output),
    }


def _rounded(values: Array) -> Any:
    """Without the last digits, which are the rounding of binary fractions."""
    return np.round(values, 12).tolist()
