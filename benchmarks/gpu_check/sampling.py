"""Choosing tokens and scoring them, in Triton beside plain torch, on rows of whole vocabularies."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.gpu_check.comparing import TOLERANCE, Inputs, error, poisoned
from benchmarks.gpu_check.rows import Report, attempt
from fathom.kernels.penalties import ref as penalties_ref
from fathom.kernels.penalties import triton as penalties
from fathom.kernels.sampling import DrawSettings
from fathom.kernels.sampling import ref as sampling_ref
from fathom.kernels.sampling import triton as sampling
from fathom.kernels.token_logprobs import ref as logprobs_ref
from fathom.kernels.token_logprobs import triton as logprobs


def run(report: Report, *, device: str, vocab_sizes: list[int], rows: int, seed: int) -> None:
    """Rows differ where a sum is rounded differently right at a cut, so one of them may."""
    for vocab_size in vocab_sizes:
        inputs, name = Inputs(seed, device), f"{vocab_size:,} tokens"
        logits = 4 * inputs.normal(rows, vocab_size)
        with attempt(report, f"choosing, {name}"):
            choose(report, name, logits, seed)
        with attempt(report, f"logprobs, {name}"):
            score(report, name, logits)
        with attempt(report, f"penalties, {name}"):
            penalise(report, name, inputs, logits)


def choose(report: Report, name: str, logits: torch.Tensor, seed: int) -> None:
    rows, vocab_size = logits.shape
    numbers, uniforms = np.arange(rows), np.random.default_rng(seed).random(rows)
    settings = some_settings(rows, vocab_size, seed)
    truncated, expected = logits.clone(), logits.clone()
    with poisoned():
        best = sampling.best_tokens(logits, numbers)
        drawn = sampling.draw_tokens(logits, numbers, settings, uniforms)
        sampling.truncate(truncated, numbers, settings)
    sampling_ref.truncate(expected, numbers, settings)
    expected_drawn = sampling_ref.draw_tokens(logits, numbers, settings, uniforms)
    report_rows(report, f"best, {name}", same(best, sampling_ref.best_tokens(logits, numbers)), 0)
    report_rows(report, f"drawn, {name}", same(drawn, expected_drawn), 1)
    same_kept = same(truncated == -torch.inf, expected == -torch.inf)
    report_rows(report, f"what top-k, top-p, min-p keep, {name}", same_kept, 1)


def same(found: torch.Tensor | np.ndarray, expected: torch.Tensor | np.ndarray) -> torch.Tensor:
    """[rows] bool: whether a row has the same values."""
    equal = torch.as_tensor(found).cpu() == torch.as_tensor(expected).cpu()
    return equal.flatten(1).all(1) if equal.dim() > 1 else equal


def report_rows(report: Report, what: str, is_same: torch.Tensor, most: int) -> None:
    report(what, float((~is_same).sum()), "rows differ", most=most, must=True, note=f"of {len(is_same)}")


def some_settings(rows: int, vocab_size: int, seed: int) -> DrawSettings:
    """Each row with a temperature, and every second with top_k, every third with top_p, every fourth with min_p."""
    chance, row = np.random.default_rng(seed), np.arange(rows)
    top_k = np.minimum(chance.integers(1, 200, rows), vocab_size)
    with np.errstate(divide="ignore"):
        log_min_p = np.log(np.where(row % 4 == 0, 0.02, 0.0).astype(np.float32))
    return DrawSettings(
        temperature=chance.uniform(0.3, 1.5, rows).astype(np.float32),
        log_min_p=log_min_p,
        top_k=np.where(row % 2 == 0, top_k, vocab_size).astype(np.int64),
        top_p=np.where(row % 3 == 0, chance.uniform(0.1, 0.99, rows), 1.0),
    )


def score(report: Report, name: str, logits: torch.Tensor) -> None:
    rows, vocab_size = logits.shape
    numbers, k = np.arange(rows), min(20, vocab_size)
    targets = torch.arange(rows, device=logits.device) * 7 % vocab_size
    with poisoned():
        found = logprobs.token_logprobs(logits, numbers, targets, k, True).arrays()
    expected = logprobs_ref.token_logprobs(logits, numbers, targets, k, True).arrays()
    differing = error(torch.as_tensor(found.logprobs), torch.as_tensor(expected.logprobs))
    report(f"logprobs, {name}", differing, "error", most=TOLERANCE[torch.float32], must=True)
    is_same = same(found.token_ids, expected.token_ids) & same(found.ranks, expected.ranks)
    report_rows(report, f"their tokens and ranks, {name}", is_same, 0)


def penalise(report: Report, name: str, inputs: Inputs, logits: torch.Tensor) -> None:
    rows, vocab_size = logits.shape
    numbers = np.arange(rows)
    factors = np.stack([1 + numbers % 3 * 0.2, numbers % 5 * 0.1, numbers % 2 * 0.5], 1).astype(np.float32)
    seen = [inputs.order(vocab_size)[: 3 + row].cpu().numpy() for row in range(rows)]
    counts = [(np.arange(len(tokens)) % 3).astype(np.float32) for tokens in seen]
    found, expected = logits.clone(), logits.clone()
    penalties.apply_penalties(found, numbers, factors, seen, counts)
    penalties_ref.apply_penalties(expected, numbers, factors, seen, counts)
    report(f"penalties, {name}", error(found, expected), "error", most=TOLERANCE[torch.float32], must=True)
