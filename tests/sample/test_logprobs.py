from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fathom.sampling_params import SamplingParams
from fathom.worker.sample.interface import BatchUpdate, LogitsProcessor, LogitsProcessorContext
from fathom.worker.sample.logprobs import LogprobsMode, prompt_logprobs
from tests.sample.helpers import CPU, GREEDY, context, make_sampler, random_logits, run

VOCAB = 500


def wants(k: int, **fields: object) -> SamplingParams:
    return SamplingParams(logprobs=k, **fields)  # type: ignore[arg-type]


@dataclass
class Mode:
    name: LogprobsMode
    is_processed: bool
    is_normalised: bool


MODES = [
    Mode("raw_logprobs", False, True),
    Mode("raw_logits", False, False),
    Mode("processed_logprobs", True, True),
    Mode("processed_logits", True, False),
]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_modes(mode: Mode, temperature: float) -> None:
    params = wants(5, temperature=temperature, logit_bias={7: 60.0, 8: 30.0})
    logits = random_logits(1, VOCAB)
    scores = logits[0].clone()
    if mode.is_processed:
        scores[7] += 60.0
        scores[8] += 30.0
        scores /= temperature or 1.0
    if mode.is_normalised:
        scores = scores.log_softmax(-1)
    output = run(make_sampler([params], VOCAB, mode=mode.name), logits, [0.2])
    assert output.token_ids.tolist() == [7]
    assert output.logprobs is not None
    assert output.logprobs.token_ids[0].tolist() == [7, *scores.topk(5).indices.tolist()]
    expected = torch.cat([scores[7:8], scores.topk(5).values])
    torch.testing.assert_close(torch.from_numpy(output.logprobs.logprobs[0]), expected)
    assert output.logprobs.ranks.tolist() == [1 + int((scores > scores[7]).sum())]


@pytest.mark.parametrize("mode", ["processed_logprobs", "processed_logits"])
def test_processed_scores_show_what_was_cut_off(mode: LogprobsMode) -> None:
    output = run(make_sampler([wants(4, top_k=2)], VOCAB, mode=mode), random_logits(1, VOCAB))
    assert output.logprobs is not None
    assert np.isneginf(output.logprobs.logprobs[0, 1:]).tolist() == [False, False, True, True]


class Sharpen(LogitsProcessor):
    """Doubles all logits, which keeps the best token."""

    def __init__(self, context: LogitsProcessorContext, device: torch.device, is_pin_memory: bool) -> None:
        pass

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        pass

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits * 2.0


def test_a_greedy_row_scores_alike_alone_and_beside_random_ones() -> None:
    logits = random_logits(2, VOCAB)
    greedy = wants(3, temperature=0.0, logit_bias={5: 2.0})
    custom = [Sharpen(context(VOCAB), CPU, False)]
    alone = run(make_sampler([greedy], VOCAB, mode="processed_logits", custom=custom), logits[:1])
    both = [greedy, SamplingParams(top_p=0.5)]
    beside = run(make_sampler(both, VOCAB, mode="processed_logits", custom=custom), logits)
    assert alone.logprobs is not None
    assert beside.logprobs is not None
    assert np.array_equal(alone.logprobs.logprobs, beside.logprobs.logprobs)
    logits[0, 5] += 2.0
    assert alone.logprobs.logprobs[0, 0] == 2.0 * logits[0].max()


def test_only_rows_that_ask_are_reported_at_the_greatest_width() -> None:
    params = [GREEDY, wants(0, temperature=0.0), wants(3, temperature=0.0), wants(200, temperature=0.0), wants(1)]
    logits = random_logits(5, VOCAB)
    output = run(make_sampler(params, VOCAB), logits, active=[True, True, True, True, False])
    assert output.logprobs_rows == [1, 2, 3]
    assert output.logprobs is not None
    assert output.logprobs.token_ids.shape == output.logprobs.logprobs.shape == (3, 201)
    assert output.logprobs.token_ids.dtype == output.logprobs.ranks.dtype == np.int32
    assert output.logprobs.logprobs.dtype == np.float32
    expected = logits[1:4].log_softmax(-1).topk(200)
    assert np.array_equal(output.logprobs.token_ids[:, 1:], expected.indices.numpy())
    np.testing.assert_allclose(output.logprobs.logprobs[:, 1:], expected.values.numpy(), rtol=1e-6)


def test_zero_reports_the_sampled_token_only() -> None:
    output = run(make_sampler([wants(0)], VOCAB), random_logits(1, VOCAB))
    assert output.logprobs is not None
    assert output.logprobs.token_ids.tolist() == [output.token_ids.tolist()]


@pytest.mark.parametrize("k", [-1, VOCAB, VOCAB + 100])
def test_whole_vocabulary(k: int) -> None:
    output = run(make_sampler([wants(k)], VOCAB), random_logits(1, VOCAB))
    assert output.logprobs is not None
    assert sorted(output.logprobs.token_ids[0, 1:].tolist()) == list(range(VOCAB))
    assert np.exp(output.logprobs.logprobs[0, 1:]).sum() == pytest.approx(1.0, abs=1e-5)


def test_rank_counts_strictly_better_tokens() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 3.0]])
    ranks = []
    for token in range(4):
        params = wants(0, temperature=0.0, allowed_token_ids=[token])
        output = run(make_sampler([params], 4), logits)
        assert output.logprobs is not None
        ranks.append(int(output.logprobs.ranks[0]))
    assert ranks == [4, 2, 2, 1]


def test_failed_rows_have_no_logprobs() -> None:
    impossible = wants(2, allowed_token_ids=[1], min_tokens=1, stop_token_ids=[1])
    logits = random_logits(3, VOCAB)
    logits[2, 0] = float("nan")
    output = run(make_sampler([impossible, wants(2), wants(2)], VOCAB), logits)
    assert sorted(output.errors) == [0, 2]
    assert output.logprobs_rows == [1]
    assert output.logprobs is not None
    assert output.logprobs.token_ids[0, 0] == output.token_ids[1]


@pytest.mark.parametrize("k", [0, 4, -1])
def test_prompt_logprobs(k: int) -> None:
    # 30,000 entries a row: 34 rows to a slice.
    logits = random_logits(80, 30_000).to(torch.bfloat16)
    targets = np.arange(80, dtype=np.int32) * 11
    arrays = prompt_logprobs(logits, targets, k).arrays()
    scores = logits.double().log_softmax(-1)
    width = 30_000 if k < 0 else k
    assert arrays.token_ids.shape == (80, 1 + width)
    assert arrays.token_ids[:, 0].tolist() == targets.tolist()
    np.testing.assert_allclose(arrays.logprobs[:, 0], scores[range(80), targets.tolist()].numpy(), rtol=1e-6, atol=2e-6)
    np.testing.assert_allclose(arrays.logprobs[:, 1:], scores.topk(width).values.numpy(), rtol=1e-6, atol=2e-6)
    ranks = (scores > scores.gather(1, torch.from_numpy(targets).long()[:, None])).sum(-1) + 1
    assert arrays.ranks.tolist() == ranks.tolist()


def test_prompt_logprobs_follow_the_raw_half_of_the_mode() -> None:
    logits = random_logits(2, VOCAB)
    targets = np.array([3, 4])
    results = {mode.name: prompt_logprobs(logits, targets, 1, mode.name).arrays().logprobs for mode in MODES}
    assert np.array_equal(results["raw_logprobs"], results["processed_logprobs"])
    assert np.array_equal(results["raw_logits"], results["processed_logits"])
    assert results["raw_logits"][0, 0] == logits[0, 3]
