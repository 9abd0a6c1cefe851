"""Penalties, biases, masks and bad words against transformers and against the definition written down plainly."""

from __future__ import annotations

import numpy as np
import torch
from transformers.generation.logits_process import NoBadWordsLogitsProcessor, RepetitionPenaltyLogitsProcessor

from fathom.sampling_params import SamplingParams
from fathom.worker.sample.interface import BatchUpdate
from fathom.worker.sample.penalties import Penalties
from tests.sample.helpers import CPU, add_rows, context, make_sampler, process, random_logits, run

VOCAB = 40
INF = float("inf")


def penalised(logits: np.ndarray, params: SamplingParams, prompt: list[int], output: list[int]) -> np.ndarray:
    """The three penalties, token by token."""
    result = logits.astype(np.float64)
    for token in set(prompt) | set(output):
        factor = params.repetition_penalty
        result[token] = result[token] / factor if result[token] > 0 else result[token] * factor
    for token in set(output):
        result[token] -= params.frequency_penalty * output.count(token)
        result[token] -= params.presence_penalty
    return result


def greedy(**fields: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, **fields)  # type: ignore[arg-type]


def test_repetition_penalty_equals_transformers() -> None:
    prompt, output = [3, 3, 7, 12], [5, 7, 5]
    logits = random_logits(1, VOCAB)
    expected = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([prompt + output]), logits.clone())
    processed = process(logits, [greedy(repetition_penalty=1.3)], prompts=[prompt], outputs=[output])
    assert torch.equal(processed, expected)


def test_all_penalties_in_their_order() -> None:
    params = [
        greedy(frequency_penalty=0.7),
        greedy(presence_penalty=-1.5),
        greedy(repetition_penalty=0.6),
        greedy(repetition_penalty=1.7, frequency_penalty=0.4, presence_penalty=0.9),
        greedy(),
    ]
    prompts = [[1, 2, 2, 39]] * 5
    outputs = [[2, 5, 5, 5, 0]] * 5
    logits = random_logits(5, VOCAB)
    processed = process(logits, params, prompts=prompts, outputs=outputs).numpy()
    for row in range(5):
        expected = penalised(logits[row].numpy(), params[row], prompts[row], outputs[row])
        np.testing.assert_allclose(processed[row], expected, rtol=1e-6, atol=1e-6)


def test_counts_follow_the_live_output() -> None:
    params = greedy(repetition_penalty=1.2, frequency_penalty=0.5, presence_penalty=0.25)
    output: list[int] = []
    penalties = Penalties(context(5_000), CPU, False)
    penalties.update_state(add_rows([params], prompts=[[4, 9]], outputs=[output]))
    generator = np.random.default_rng(0)
    for step in range(200):
        penalties.update_state(None)
        logits = random_logits(1, 5_000, seed=step)
        expected = penalised(logits[0].numpy(), params, [4, 9], output)
        np.testing.assert_allclose(penalties.apply(logits)[0].numpy(), expected, rtol=1e-6, atol=1e-6)
        output.extend(generator.integers(0, 5_000, 3).tolist())


def test_no_prompt_ids_means_an_empty_prompt() -> None:
    penalties = Penalties(context(VOCAB), CPU, False)
    penalties.update_state(BatchUpdate(1, added=[(0, greedy(repetition_penalty=2.0), None, [])]))
    logits = random_logits(1, VOCAB)
    assert torch.equal(penalties.apply(logits.clone()), logits)


def test_logit_bias_adds() -> None:
    logits = random_logits(2, VOCAB)
    processed = process(logits, [greedy(logit_bias={3: 2.5, 17: -100.0}), greedy()])
    expected = logits.clone()
    expected[0, 3] += 2.5
    expected[0, 17] -= 100.0
    assert torch.equal(processed, expected)


def test_allowed_token_ids_exclude_all_others() -> None:
    logits = random_logits(2, VOCAB)
    processed = process(logits, [greedy(allowed_token_ids=[8, 2, 2]), greedy()])
    expected = torch.full((VOCAB,), -INF)
    expected[[2, 8]] = logits[0, [2, 8]]
    assert torch.equal(processed[0], expected)
    assert torch.equal(processed[1], logits[1])


def test_bias_does_not_revive_a_masked_token() -> None:
    logits = torch.zeros(1, VOCAB)
    processed = process(logits, [greedy(allowed_token_ids=[1], logit_bias={1: -50.0, 2: 100.0})])
    assert torch.isfinite(processed[0]).nonzero().flatten().tolist() == [1]


def test_min_tokens_masks_stop_tokens_until_reached() -> None:
    # 999 is an end-of-sequence id outside the vocabulary, as some checkpoints have.
    params = greedy(min_tokens=2, stop_token_ids=[4])
    params.eos_token_ids = [6, 999]
    output: list[int] = []
    sampler = make_sampler([params], VOCAB, outputs=[output])
    logits = torch.zeros(1, VOCAB)
    logits[0, 6], logits[0, 4], logits[0, 1] = 3.0, 2.0, 1.0
    sampled = []
    for _ in range(3):
        sampler.update_state(None)
        output.append(int(run(sampler, logits).token_ids[0]))
        sampled.append(output[-1])
    assert sampled == [1, 1, 6]


def test_min_tokens_leaves_an_ignored_eos_alone() -> None:
    params = greedy(min_tokens=2, ignore_eos=True)
    params.eos_token_ids = [6]
    logits = torch.zeros(1, VOCAB)
    logits[0, 6] = 3.0
    assert run(make_sampler([params], VOCAB), logits).token_ids.tolist() == [6]


def test_min_tokens_counts_the_output_of_a_resumed_request() -> None:
    params = greedy(min_tokens=2)
    params.eos_token_ids = [6]
    logits = torch.zeros(1, VOCAB)
    logits[0, 6] = 3.0
    assert run(make_sampler([params], VOCAB, outputs=[[1, 2]]), logits).token_ids.tolist() == [6]


def test_bad_words_equal_transformers() -> None:
    words = [[5], [1, 2], [1, 2, 3], [9, 2, 7], [2, 2]]
    params = greedy(bad_words=["given by their tokens"])
    params.bad_words_token_ids = words
    outputs = [[], [1], [1, 2], [9, 2], [2], [4, 1, 2], [2, 1]]
    logits = random_logits(len(outputs), VOCAB)
    processed = process(logits, [params] * len(outputs), outputs=outputs)
    oracle = NoBadWordsLogitsProcessor(words)
    for row, output in enumerate(outputs):
        # transformers wants some context; token 30 is part of no word.
        expected = oracle(torch.tensor([[30, *output]]), logits[row : row + 1].clone())
        assert torch.equal(processed[row], expected[0]), output


def test_bad_words_do_not_begin_in_the_prompt() -> None:
    params = greedy(bad_words=["x"])
    params.bad_words_token_ids = [[1, 2], [VOCAB + 5], [3, VOCAB + 5]]
    logits = random_logits(1, VOCAB)
    assert torch.equal(process(logits, [params], prompts=[[1]], outputs=[[]]), logits)
