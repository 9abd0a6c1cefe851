"""temperature, min_p, top_k and top_p against transformers and against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from fathom.kernels.sampling.ref import keep_top_k, keep_top_k_top_p
from fathom.sampling_params import SamplingParams
from tests.sample.helpers import process, random_logits

INF = float("inf")


def warped(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """What transformers samples from, for one row; it applies min_p last, here as in vLLM it comes first."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(params.temperature)])
    if params.min_p > 0:
        warpers.append(MinPLogitsWarper(params.min_p))
    if params.top_k > 0:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(TopPLogitsWarper(params.top_p))
    return warpers(torch.zeros(1, 0, dtype=torch.int64), logits[None].clone())[0]


CASES = [
    {},
    {"temperature": 0.3},
    {"temperature": 2.0},
    {"top_k": 1},
    {"top_k": 50},
    {"top_k": 100_000},
    {"top_p": 1e-6},
    {"top_p": 0.3},
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_k": 20, "top_p": 0.8, "temperature": 0.7},
    {"top_k": 700, "top_p": 0.95},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.02, "temperature": 1.3},
]


@pytest.mark.parametrize("vocab_size", [17, 300, 9_000])
@pytest.mark.parametrize("scale", [0.1, 3.0], ids=["flat", "peaked"])
def test_rows_equal_transformers(vocab_size: int, scale: float) -> None:
    """All cases in one batch: flat rows need more than the first head of the top_p search, peaked ones do not."""
    params = [SamplingParams(**case) for case in CASES]
    logits = random_logits(len(params), vocab_size, seed=vocab_size, scale=scale)
    processed = process(logits, params)
    for row, param in enumerate(params):
        expected = warped(logits[row], param)
        assert torch.equal(processed[row].isneginf(), expected.isneginf()), CASES[row]
        torch.testing.assert_close(processed[row], expected, rtol=1e-6, atol=0)


def brute_force(logits: np.ndarray, k: int, p: float) -> set[int]:
    """Tokens that remain, by sorting: ties with the k-th stay, ties at the edge of top_p go by id."""
    order = np.argsort(-logits, kind="stable")
    order = order[logits[order] >= logits[order[k - 1]]]
    probs = np.exp(logits[order].astype(np.float64))
    before = np.concatenate([[0.0], np.cumsum(probs / probs.sum())[:-1]])
    return set(order[before < p].tolist())


@pytest.mark.parametrize("seed", range(20))
def test_ties_and_heads_equal_brute_force(seed: int) -> None:
    """Few distinct logits, so that ties cross the k-th place, the edge of top_p and the ends of the heads."""
    generator = np.random.default_rng(seed)
    vocab_size = int(generator.choice([5, 255, 256, 257, 4_095, 4_097, 6_000]))
    levels = int(generator.integers(2, 40))
    logits = generator.integers(0, levels, (8, vocab_size)).astype(np.float32) / 4
    k = np.minimum(generator.choice([1, 3, 200, 256, 257, 5_000, vocab_size], 8), vocab_size)
    p = generator.choice([0.01, 0.31, 0.77, 0.953, 0.9999], 8)
    kept = keep_top_k_top_p(torch.from_numpy(logits.copy()), torch.from_numpy(k), torch.from_numpy(p))
    for row in range(8):
        remaining = set((~kept[row].isneginf()).nonzero().flatten().tolist())
        assert remaining == brute_force(logits[row], int(k[row]), float(p[row])), (vocab_size, k[row], p[row])


def test_top_k_keeps_ties_with_the_last() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 0.0], [1.0, 3.0, 2.0, 2.0, 0.0]])
    kept = keep_top_k(logits, torch.tensor([2, 1]))
    assert kept.tolist() == [[-INF, 3.0, 2.0, 2.0, -INF], [-INF, 3.0, -INF, -INF, -INF]]


def test_top_p_splits_ties_by_token_id() -> None:
    kept = keep_top_k_top_p(torch.zeros(1, 10), torch.tensor([10]), torch.tensor([0.25], dtype=torch.float64))
    assert (~kept[0].isneginf()).nonzero().flatten().tolist() == [0, 1, 2]


def test_top_p_keeps_what_top_k_renormalised() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    params = SamplingParams(top_k=2, top_p=0.5)
    # Of the whole distribution 0.4 + 0.3 would be needed; of the renormalised pair the first has 0.57.
    assert process(logits, [params])[0].isneginf().tolist() == [False, True, True, True]


def test_rows_do_not_depend_on_the_batch() -> None:
    params = [SamplingParams(**case) for case in CASES]
    logits = random_logits(len(params), 5_000, scale=0.5)
    together = process(logits, params)
    for row, param in enumerate(params):
        assert torch.equal(process(logits[row : row + 1], [param])[0], together[row]), CASES[row]


def test_greedy_rows_are_left_alone() -> None:
    logits = random_logits(2, 50)
    processed = process(logits, [SamplingParams(temperature=0.0), SamplingParams(temperature=0.5, top_k=3)])
    assert torch.equal(processed[0], logits[0])
    assert torch.isfinite(processed[1]).sum() == 3
