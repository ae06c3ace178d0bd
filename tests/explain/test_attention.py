"""The worked example, digit by digit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from kvledger.explain.attention import (
    EMBEDDINGS,
    PRINTED_K,
    Q3,
    W_K,
    V,
    attend,
    attention_page,
    attention_record,
    projected_keys,
)
from kvledger.page.html import render


def test_k1_is_as_printed_and_k2_and_k3_are_not():
    keys = projected_keys()
    np.testing.assert_allclose(keys[0], [0.16, 0.35, 0.17, 0.43], atol=1e-12)
    np.testing.assert_allclose(keys[1], [0.58, 0.17, 0.53, 0.16], atol=1e-12)
    np.testing.assert_allclose(keys[2], [0.20, 0.45, 0.20, 0.39], atol=1e-12)
    assert attention_record()["follows_from_w_k"] == [True, False, False]


def test_k_in_exact_fractions():
    def exact(values):
        return [[Fraction(str(value)) for value in row] for row in values]

    rows, weights = exact(EMBEDDINGS), exact(W_K)
    for row, found in zip(rows, projected_keys(), strict=True):
        expected = [sum(row[i] * weights[i][j] for i in range(4)) for j in range(4)]
        np.testing.assert_allclose(found, [float(value) for value in expected], rtol=1e-14)


def test_scores_scaling_weights_and_output_to_the_printed_digits():
    found = attend(Q3, PRINTED_K, V)
    assert [f"{value:.4f}" for value in found.scores] == ["0.4471", "0.2804", "0.4424"]
    assert [f"{value:.5f}" for value in found.scaled] == ["0.22355", "0.14020", "0.22120"]
    assert [f"{value:.3f}" for value in found.weights] == ["0.343", "0.315", "0.342"]
    assert [f"{value:.4f}" for value in found.output] == ["0.5053", "0.2919", "0.4340", "0.2712"]
    assert found.weights.sum() == pytest.approx(1)


def test_the_page_says_what_does_not_follow():
    page = render(attention_page())
    assert "neither follows" in page
    assert "0.343, 0.315, 0.342" in page
    assert "0.25 x 0.16 + 0.40 x 0.35 + 0.18 x 0.17 + 0.55 x 0.43 = 0.4471" in page
