"""The Triton kernels that choose tokens and score them beside plain torch, in Triton's interpreter: rows of several
tiles, among rows of NaN that nobody asked for, with scratch memory that is filled with junk."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from fathom.kernels import row_search
from fathom.kernels.penalties import ref as penalties_ref
from fathom.kernels.penalties import triton as penalties
from fathom.kernels.sampling import NO_TOKEN, DrawSettings
from fathom.kernels.sampling import ref as sampling_ref
from fathom.kernels.sampling import triton as sampling
from fathom.kernels.token_logprobs import ref as logprobs_ref
from fathom.kernels.token_logprobs import triton as logprobs
from tests.kernels.logit_rows import INF, make_row

# In rows that are not finite.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|divide by zero) encountered:RuntimeWarning")

NAN, LARGEST_UNIFORM = float("nan"), 1.0 - 2.0**-53

# kind of row, temperature, min_p, top_k (0 for none), top_p, the number to draw with
CASES = [
    ("normal", 0.7, 0.001, 50, 0.9, 0.77),
    ("normal", 1.3, 0.0, 0, 1.0, LARGEST_UNIFORM),
    ("flat", 1.0, 0.0, 0, 0.5, 0.0),
    ("levels", 0.8, 0.0, 7, 1.0, 0.9999),  # the k-th ties with others
    ("levels", 1.7, 0.2, 0, 0.62, 0.3),  # so does the last that top_p keeps
    ("equal", 1.0, 1.0, 3, 0.31, 0.5),
    ("masked", 0.3, 0.0, 100, 0.9999, 0.01),  # more than are left
    ("mostly masked", 1.0, 1e-4, 2, 1e-9, 0.6),
    ("signed zeros", 1.0, 0.0, 0, 0.43, 0.95),
]


@pytest.fixture(autouse=True)
def junk_and_small_tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rows of 130 tokens have three tiles, the tiles two chunks; torch.empty is full of NaN. The interpreter's time
    goes by the operations, not their sizes, so passes are fewer and larger."""
    monkeypatch.setattr(row_search, "TILE", 64)
    monkeypatch.setattr(row_search, "CHUNK", 32)
    monkeypatch.setattr(row_search, "PASS_BITS", 8)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def rows_apart(rows: list[torch.Tensor]) -> tuple[torch.Tensor, np.ndarray]:
    """The rows as a part of wider ones, from last to first, each between rows of NaN; and their numbers."""
    size = len(rows[0])
    logits = torch.full((2 * len(rows) + 1, size + 5), NAN)[:, 2 : 2 + size]
    numbers = np.arange(len(rows))[::-1] * 2 + 1
    for number, row in zip(numbers, rows, strict=True):
        logits[number] = row
    return logits, numbers.copy()


def batch_of(cases: list, vocab_size: int) -> tuple[torch.Tensor, np.ndarray, DrawSettings, np.ndarray]:
    logits, rows = rows_apart([make_row(case[0], vocab_size, seed) for seed, case in enumerate(cases)])
    _, temperature, min_p, top_k, top_p, uniforms = map(np.array, zip(*cases, strict=True))
    with np.errstate(divide="ignore"):
        settings = DrawSettings(
            temperature.astype(np.float32),
            np.log(min_p.astype(np.float32)),
            np.where(top_k == 0, vocab_size, np.minimum(top_k, vocab_size)),
            top_p,
        )
    return logits, rows, settings, uniforms


@pytest.mark.parametrize("vocab_size", [1, 130])
def test_tokens_are_those_of_plain_torch(vocab_size: int) -> None:
    logits, rows, settings, uniforms = batch_of(CASES, vocab_size)
    before = logits.clone()
    best = sampling.best_tokens(logits, rows)
    tokens = sampling.draw_tokens(logits, rows, settings, uniforms)
    np.testing.assert_array_equal(best, sampling_ref.best_tokens(logits, rows))
    np.testing.assert_array_equal(tokens, sampling_ref.draw_tokens(logits, rows, settings, uniforms))
    torch.testing.assert_close(logits, before, rtol=0, atol=0, equal_nan=True)
    expected = logits.clone()
    sampling_ref.truncate(expected, rows, settings)
    sampling.truncate(logits, rows, settings)
    torch.testing.assert_close(logits, expected, rtol=0, atol=0, equal_nan=True)
    # What is left is what was drawn from.
    neutral = DrawSettings.neutral(len(rows), vocab_size)
    np.testing.assert_array_equal(sampling.draw_tokens(logits, rows, neutral, uniforms), tokens)
    is_random = np.arange(len(rows)) % 3 > 0
    choice = sampling.Choice(rows, is_random, neutral, vocab_size)
    chosen = np.where(is_random, tokens, best)
    assert choice.launch(logits, uniforms[is_random].tolist()).tolist() == chosen.tolist()


def test_tokens_do_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor on how a row is searched: alone, one without top_k or top_p takes a shorter way."""
    logits, rows, settings, uniforms = batch_of(CASES, 130)
    together = sampling.draw_tokens(logits, rows, settings, uniforms)
    monkeypatch.undo()
    for case in (1, 3, 4):
        one = slice(case, case + 1)
        assert sampling.draw_tokens(logits, rows[one], settings.of(one), uniforms[one]) == together[case]


def test_rows_that_are_not_finite_have_no_token() -> None:
    bad = [torch.full((130,), filler) for filler in (0.0, 0.0, 0.0, -INF)]
    for row, value, position in zip(bad, (NAN, -NAN, INF, -INF), (0, 129, 64, 0), strict=True):
        row[position] = value
    logits, rows = rows_apart([torch.zeros(130), *bad])
    neutral = DrawSettings.neutral(5, 130)
    limited = neutral._replace(top_k=np.full(5, 5), top_p=np.full(5, 0.9), log_min_p=np.full(5, -3.0, np.float32))
    expected = [False, True, True, True, True]
    assert (sampling.best_tokens(logits, rows) == NO_TOKEN).tolist() == expected
    for settings in (neutral, limited):
        assert (sampling.draw_tokens(logits, rows, settings, np.full(5, 0.9)) == NO_TOKEN).tolist() == expected
    sampling.truncate(logits, rows, limited)
    assert (sampling.best_tokens(logits, rows) == NO_TOKEN).tolist() == expected
    for normalised in (False, True):
        scores = logprobs.token_logprobs(logits, rows, torch.zeros(5, dtype=torch.int64), 70, normalised).arrays()
        assert np.isnan(scores.logprobs).all(axis=1).tolist() == expected
        assert ((scores.token_ids >= 0) & (scores.token_ids < 130)).all()


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize(("vocab_size", "k"), [(1, 1), (130, 0), (130, 70), (130, 130)])
def test_scores_are_those_of_plain_torch(vocab_size: int, k: int, normalised: bool) -> None:
    logits, rows, _, _ = batch_of(CASES[::2], vocab_size)
    targets = torch.tensor([0, 129, 64, 63, 100]) % vocab_size
    actual = logprobs.token_logprobs(logits, rows, targets, k, normalised).arrays()
    expected = logprobs_ref.token_logprobs(logits, rows, targets, k, normalised).arrays()
    np.testing.assert_array_equal(actual.token_ids, expected.token_ids)
    np.testing.assert_array_equal(actual.ranks, expected.ranks)
    np.testing.assert_allclose(actual.logprobs, expected.logprobs, rtol=0, atol=4e-6 if normalised else 0)
    assert [array.dtype for array in (actual.token_ids, actual.logprobs, actual.ranks)] == ["i4", "f4", "i4"]


def test_penalties_are_those_of_plain_torch() -> None:
    chance = np.random.default_rng(1)
    logits, rows = rows_apart([make_row(kind, 700, 0) for kind in ("normal", "masked", "flat", "levels")])
    strengths = np.array([[1.3, 0.0, 0.0], [0.7, 0.5, 0.25], [1.5, 1.0, 1.0], [1.0, -0.1, 1.0]], np.float32)
    token_ids = [chance.permutation(700)[:count] for count in (700, 699, 0, 3)]
    counts = [chance.integers(0, 4, len(ids)).astype(np.float32) for ids in token_ids]
    expected = logits.clone()
    penalties_ref.apply_penalties(expected, rows, strengths, token_ids, counts)
    penalties.apply_penalties(logits, rows, strengths, token_ids, counts)
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6, equal_nan=True)
    nothing = [np.empty(0, np.int64)] * 4
    penalties.apply_penalties(logits, rows, strengths, nothing, [ids.astype(np.float32) for ids in nothing])
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6, equal_nan=True)
