from __future__ import annotations

import numpy as np
import pytest
import torch

from fathom.kernels.sampling import NO_TOKEN, DrawSettings, draw_tokens
from fathom.kernels.step_rows.random import uniform
from tests.sample.helpers import random_logits

INF = float("inf")
LARGEST_UNIFORM = 1.0 - 2.0**-53


def draw(logits: torch.Tensor, uniforms: np.ndarray) -> torch.Tensor:
    num_rows, vocab_size = logits.shape
    return draw_tokens(logits, np.arange(num_rows), DrawSettings.neutral(num_rows, vocab_size), uniforms)


def test_token_is_the_first_whose_cumulative_probability_exceeds_the_number() -> None:
    logits = torch.tensor([[0.25, 0.5, 0.25]]).log().expand(6, 3)
    tokens = draw(logits, np.array([0.0, 0.2499, 0.2501, 0.7499, 0.7501, LARGEST_UNIFORM]))
    assert tokens.tolist() == [0, 0, 1, 1, 2, 2]


def test_masked_tokens_are_never_drawn() -> None:
    logits = torch.tensor([[-INF, 0.0, -INF, 0.0, -INF]]).expand(4, 5)
    assert draw(logits, np.array([0.0, 0.49999, 0.5, LARGEST_UNIFORM])).tolist() == [1, 1, 3, 3]


@pytest.mark.parametrize("vocab_size", [1, 7, 1000, 151_936])
def test_extreme_numbers_stay_within_the_possible_tokens(vocab_size: int) -> None:
    logits = random_logits(2, vocab_size)
    logits[:, vocab_size // 2 + 1 :] = -INF
    first, last = draw(logits, np.array([0.0, LARGEST_UNIFORM])).tolist()
    assert first == 0
    assert last <= vocab_size // 2


def test_rows_without_a_distribution_give_no_token() -> None:
    logits = torch.tensor([[-INF, -INF], [float("nan"), 0.0], [INF, 0.0], [0.0, -INF]])
    assert draw(logits, np.full(4, 0.9)).tolist() == [NO_TOKEN, NO_TOKEN, NO_TOKEN, 0]


def test_agrees_with_numpy_over_many_slices() -> None:
    # 100,000 entries a row: ten rows to a slice.
    logits, numbers = random_logits(25, 100_000), uniform(np.arange(25), np.zeros(25), np.zeros(25))
    cumulative = np.cumsum(logits.softmax(-1).numpy().astype(np.float64), axis=-1)
    expected = [np.searchsorted(row, u * row[-1], side="right") for row, u in zip(cumulative, numbers, strict=True)]
    assert draw(logits, numbers).tolist() == expected


def test_tokens_follow_the_distribution() -> None:
    draws = 20_000
    logits = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05]).log().expand(draws, 5)
    numbers = uniform(np.full(draws, 11), np.zeros(draws, np.int64), np.arange(draws))
    observed = np.bincount(draw(logits, numbers), minlength=5)
    expected = draws * np.array([0.4, 0.3, 0.15, 0.1, 0.05])
    # Chi-square with 4 degrees of freedom: 18.5 is exceeded once in a thousand; the seed is fixed.
    assert ((observed - expected) ** 2 / expected).sum() < 18.5


def test_no_rows() -> None:
    assert draw(torch.empty(0, 10), np.zeros(0)).tolist() == []
