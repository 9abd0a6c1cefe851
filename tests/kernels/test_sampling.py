"""Native sampling at every level: the rules as properties, plain torch as oracle, and a row to itself beside others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fathom.kernels.penalties import cpu as penalties
from fathom.kernels.penalties import ref as penalties_ref
from fathom.kernels.sampling import NO_TOKEN, DrawSettings
from fathom.kernels.sampling import cpu as sampling
from fathom.kernels.sampling import ref as sampling_ref
from fathom.kernels.token_logprobs import cpu as logprobs
from fathom.kernels.token_logprobs import ref as logprobs_ref
from fathom.step import LogprobsArrays
from tests.kernels.logit_rows import KINDS, make_row

native = pytest.importorskip("fathom._cpu")

INF, NAN = float("inf"), float("nan")
LARGEST_UNIFORM = 1.0 - 2.0**-53
SIZES = [1, 2, 15, 16, 17, 31, 64, 255, 256, 257, 300, 1024, 1025, 3000]


@pytest.fixture(autouse=True, scope="module", params=native.levels())
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    before, threads = native.level(), native.num_threads()
    native.use_level(request.param)
    native.set_num_threads(2)
    yield request.param
    native.use_level(before)
    native.set_num_threads(threads)


def as_settings(temperature: float, min_p: float, top_k: int, top_p: float) -> DrawSettings:
    with np.errstate(divide="ignore"):
        return DrawSettings(
            np.array([temperature], np.float32),
            np.log(np.array([min_p], np.float32)),
            np.array([top_k], np.int64),
            np.array([top_p], np.float64),
        )


ONE_ROW = np.zeros(1, np.int64)
rows_of_any_kind = st.builds(make_row, st.sampled_from(KINDS), st.sampled_from(SIZES), st.integers(0, 50))
any_settings = st.builds(
    as_settings,
    st.sampled_from([0.01, 0.3, 0.8, 1.0, 1.7]),
    st.sampled_from([0.0, 0.001, 0.2, 1.0]),
    st.sampled_from([1, 2, 20, 70, 1000, 5000]),
    st.sampled_from([1e-9, 0.1, 0.5, 0.95, 0.9999, 1 - 1e-12, 1.0]),
)
uniforms = st.sampled_from([0.0, 0.01, 0.3, 0.5, 0.777, 0.9999, LARGEST_UNIFORM])


def within_vocab(row_settings: DrawSettings, row: torch.Tensor) -> DrawSettings:
    return row_settings._replace(top_k=np.minimum(row_settings.top_k, len(row)))


def truncated(row: torch.Tensor, row_settings: DrawSettings) -> torch.Tensor:
    logits = row[None].clone()
    sampling.truncate(logits, ONE_ROW, row_settings)
    return logits[0]


@settings(max_examples=300, deadline=None)
@given(row=rows_of_any_kind, chosen=any_settings)
def test_what_remains_keeps_the_rules(row: torch.Tensor, chosen: DrawSettings) -> None:
    chosen = within_vocab(chosen, row)
    result = truncated(row, chosen)
    # temperature, min_p and top_k are exact, so what they leave is what plain torch leaves.
    without_p = row[None].clone()
    sampling_ref.truncate(without_p, ONE_ROW, chosen._replace(top_p=np.ones(1)))
    kept = ~result.isneginf()
    assert torch.equal(result[kept], without_p[0][kept])
    if chosen.top_p[0] == 1.0:
        assert torch.equal(result, without_p[0])
        return
    # top_p: a prefix of the tokens from best to worst, the shortest that reaches the share.
    order = without_p[0].sort(descending=True, stable=True)
    num_kept = int(kept.sum())
    assert num_kept >= 1
    assert kept[order.indices[:num_kept]].all()
    cumulative = order.values.double().softmax(-1).cumsum(-1)
    before_last = float(cumulative[num_kept - 2]) if num_kept > 1 else 0.0
    assert before_last < chosen.top_p[0] + 1e-6
    assert cumulative[num_kept - 1] > chosen.top_p[0] - 1e-6


@settings(max_examples=300, deadline=None)
@given(row=rows_of_any_kind, chosen=any_settings, uniform=uniforms)
def test_a_drawn_token_is_where_the_cumulative_probability_passes_the_number(
    row: torch.Tensor, chosen: DrawSettings, uniform: float
) -> None:
    chosen = within_vocab(chosen, row)
    numbers = np.array([uniform])
    before = row.clone()
    token = int(sampling.draw_tokens(row[None], ONE_ROW, chosen, numbers)[0])
    assert torch.equal(row, before)
    result = truncated(row, chosen)
    assert not result[token].isneginf()
    cumulative = result.double().softmax(-1).cumsum(-1)
    assert cumulative[token] > uniform - 1e-6
    assert token == 0 or cumulative[token - 1] < uniform + 1e-6
    neutral = DrawSettings.neutral(1, len(row))
    assert int(sampling.draw_tokens(result[None], ONE_ROW, neutral, numbers)[0]) == token


@settings(max_examples=200, deadline=None)
@given(row=rows_of_any_kind, k=st.sampled_from([0, 1, 5, 33, 300, 5000]), normalised=st.booleans())
def test_logprobs_equal_plain_torch(row: torch.Tensor, k: int, normalised: bool) -> None:
    k, target = min(k, len(row)), torch.tensor([len(row) // 3])
    fast = logprobs.token_logprobs(row[None], ONE_ROW, target, k, normalised).arrays()
    slow = logprobs_ref.token_logprobs(row[None], ONE_ROW, target, k, normalised).arrays()
    assert np.array_equal(fast.token_ids, slow.token_ids)
    assert np.array_equal(fast.ranks, slow.ranks)
    np.testing.assert_allclose(fast.logprobs, slow.logprobs, rtol=0, atol=4e-6 if normalised else 0)


@pytest.mark.parametrize("vocab_size", [5, 300, 49_157])
def test_choosing_and_scoring_at_once_gives_the_same_bits(vocab_size: int) -> None:
    logits, chosen, _ = full_size_batch(vocab_size)
    logits = torch.cat([logits, torch.full((1, vocab_size), NAN)])
    rows, is_random = np.arange(len(logits))[::-1].copy(), np.arange(len(logits)) % 3 == 1
    chosen = within_vocab(chosen.of(rows - 1), logits[0])
    uniforms = np.random.default_rng(1).random(is_random.sum()).tolist()
    choice = sampling.Choice(rows, is_random, chosen, vocab_size)
    expected = choice.choose(logits, uniforms)
    assert expected.count(NO_TOKEN) == 1
    assert expected == sampling_ref.Choice(rows, is_random, chosen, vocab_size).launch(logits, uniforms).tolist()
    for scored, k, normalised in (([0, 1, 4, 7], 4, True), ([1, 2], 5, False), ([2, 3, 6], 0, True)):
        picked = np.array(scored)
        token_ids, found = choice.choose_and_score(logits, uniforms, picked, k, normalised)
        assert token_ids == expected
        targets = torch.tensor(expected)[picked].clamp(min=0)
        alone = logprobs.token_logprobs(logits, rows[picked], targets, k, normalised).arrays()
        for name in ("token_ids", "logprobs", "ranks"):
            assert getattr(found, name).tobytes() == getattr(alone, name).tobytes()


@settings(max_examples=50, deadline=None)
@given(row=rows_of_any_kind)
def test_the_best_token_is_the_first_of_the_largest(row: torch.Tensor) -> None:
    assert sampling.best_tokens(row[None], ONE_ROW).tolist() == [int(np.argmax(row.numpy()))]


def full_size_batch(vocab_size: int) -> tuple[torch.Tensor, DrawSettings, np.ndarray]:
    logits = torch.stack([make_row(kind, vocab_size, 3) for kind in KINDS])
    rows = len(KINDS)
    chosen = DrawSettings(
        np.linspace(0.4, 1.6, rows, dtype=np.float32),
        np.log(np.array([0.1, 1e-30, 1e-4, 1e-30, 1e-30, 0.02, 1e-30], np.float32)),
        np.array([50, vocab_size, 2000, vocab_size, 7, 50, vocab_size]),
        np.array([0.95, 0.999, 1.0, 0.31, 0.9, 1.0, 1.0]),
    )
    return logits, chosen, np.random.default_rng(0).random(rows)


@pytest.mark.parametrize("vocab_size", [49_152, 262_145])
def test_a_row_has_the_same_bits_in_any_batch_on_any_number_of_threads(vocab_size: int) -> None:
    logits, chosen, numbers = full_size_batch(vocab_size)
    every = np.arange(len(KINDS))

    def run(rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, LogprobsArrays]:
        tokens = sampling.draw_tokens(logits, rows, chosen.of(rows), numbers[rows])
        left = logits.clone()
        sampling.truncate(left, rows, chosen.of(rows))
        return tokens, left[torch.from_numpy(rows)], logprobs.token_logprobs(logits, rows, tokens, 100, True).arrays()

    together = run(every)
    plain = sampling_ref.draw_tokens(logits, every, chosen, numbers)
    assert together[0].tolist() == plain.tolist()
    native.set_num_threads(1)
    for row in every:
        tokens, left, scores = run(every[row : row + 1])
        assert tokens[0] == together[0][row]
        assert torch.equal(left[0], together[1][row])
        for name in ("token_ids", "logprobs", "ranks"):
            assert np.array_equal(getattr(scores, name)[0], getattr(together[2], name)[row])
    native.set_num_threads(2)


@pytest.mark.parametrize("position", [0, 299, 1000])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_rows_that_are_not_finite_have_no_token(bad: float, position: int) -> None:
    logits = torch.zeros(3, 1001)
    logits[1, :] = -INF
    logits[1, position] = bad
    rows = np.arange(3)
    assert (sampling.best_tokens(logits, rows) == NO_TOKEN).tolist() == [False, True, False]
    for top_k in (1001, 5):
        chosen = DrawSettings.neutral(3, 1001)._replace(top_k=np.full(3, top_k))
        drawn = sampling.draw_tokens(logits, rows, chosen, np.full(3, 0.9))
        assert (drawn == NO_TOKEN).tolist() == [False, True, False]
    for kernel in (logprobs, logprobs_ref):
        scores = kernel.token_logprobs(logits, rows, torch.zeros(3, dtype=torch.int64), 4, True).arrays()
        assert np.isnan(scores.logprobs[1]).all()


def test_penalties_equal_plain_torch() -> None:
    generator = np.random.default_rng(1)
    logits = torch.randn(4, 500, generator=torch.Generator().manual_seed(0))
    logits[2, 7] = -INF
    rows = np.array([0, 2, 3])
    strengths = np.array([[1.3, 0.0, 0.0], [0.7, 0.5, 0.25], [1.0, -0.1, 1.0]], np.float32)
    token_ids = [generator.permutation(500)[:n] for n in (499, 500, 0)]
    counts = [generator.integers(0, 4, len(ids)).astype(np.float32) for ids in token_ids]
    expected = logits.clone()
    penalties_ref.apply_penalties(expected, rows, strengths, token_ids, counts)
    penalties.apply_penalties(logits, rows, strengths, token_ids, counts)
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)
