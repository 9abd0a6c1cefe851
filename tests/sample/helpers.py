"""A sampler with a batch of requests in it, and what the tests say about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from fathom.kernels.sampling import NO_TOKEN
from fathom.sampling_params import SamplingParams
from fathom.worker.sample.guard import GuardedProcessor
from fathom.worker.sample.interface import BatchUpdate, LogitsProcessor, LogitsProcessorContext
from fathom.worker.sample.logprobs import LogprobsMode
from fathom.worker.sample.sampler import Sampler
from fathom.worker.sample.samples import SamplerOutput

CPU = torch.device("cpu")
GREEDY = SamplingParams(temperature=0.0)


def context(vocab_size: int, max_num_seqs: int = 16) -> LogitsProcessorContext:
    return LogitsProcessorContext(vocab_size, max_num_seqs)


def guarded(processor: LogitsProcessor) -> GuardedProcessor:
    return GuardedProcessor(processor, {type(processor).__name__})


def make_sampler(
    params: Sequence[SamplingParams],
    vocab_size: int,
    *,
    prompts: Sequence[list[int]] | None = None,
    outputs: Sequence[list[int]] | None = None,
    mode: LogprobsMode = "raw_logprobs",
    custom: Sequence[LogitsProcessor] = (),
) -> Sampler:
    """A sampler whose row i serves a request with params[i]; a custom processor is known by its class's name."""
    sampler = Sampler(context(vocab_size, max(16, len(params))), CPU, mode, [guarded(item) for item in custom])
    sampler.update_state(add_rows(params, prompts=prompts, outputs=outputs))
    return sampler


def add_rows(
    params: Sequence[SamplingParams],
    *,
    prompts: Sequence[list[int]] | None = None,
    outputs: Sequence[list[int]] | None = None,
) -> BatchUpdate:
    prompts = prompts or [[] for _ in params]
    outputs = outputs or [[] for _ in params]
    return BatchUpdate(len(params), added=[(i, p, prompts[i], outputs[i]) for i, p in enumerate(params)])


def run(
    sampler: Sampler,
    logits: torch.Tensor,
    uniforms: Sequence[float] | np.ndarray | None = None,
    active: Sequence[bool] | None = None,
) -> SamplerOutput:
    """One step on a copy of the logits; rows that are not active have no token in the output."""
    numbers = np.full(len(logits), 0.5) if uniforms is None else np.asarray(uniforms, np.float64)
    rows = np.arange(len(logits)) if active is None else np.flatnonzero(active)
    output = sampler.forward(logits[torch.from_numpy(rows)], rows, lambda drawn: numbers[drawn].tolist())
    token_ids = np.full(len(logits), NO_TOKEN)
    token_ids[rows] = output.token_ids
    return dataclasses.replace(output, token_ids=token_ids)  # an array, as tests want it


def process(
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    *,
    prompts: Sequence[list[int]] | None = None,
    outputs: Sequence[list[int]] | None = None,
) -> torch.Tensor:
    """What each row is sampled from, [rows, vocab_size]: read off whole-vocabulary processed logits."""
    vocab_size = logits.shape[1]
    wanting = [p.clone() for p in params]
    for p in wanting:
        p.logprobs = -1
    sampler = make_sampler(wanting, vocab_size, prompts=prompts, outputs=outputs, mode="processed_logits")
    output = run(sampler, logits)
    assert output.errors == {}
    assert output.logprobs is not None
    processed = torch.empty_like(logits)
    ids = torch.from_numpy(output.logprobs.token_ids[:, 1:].astype(np.int64))
    return processed.scatter_(1, ids, torch.from_numpy(output.logprobs.logprobs[:, 1:]))


def random_logits(rows: int, vocab_size: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale
