"""Log-probabilities: which scores are reported, and how they are gathered.

Four modes, set for the whole engine:

    raw_logprobs         log-softmax of the model's logits (default)
    raw_logits           the model's logits
    processed_logprobs   log-softmax of what was sampled from: after masks, penalties, temperature, truncation
    processed_logits     what was sampled from

A prompt's tokens were not sampled, so nothing was processed: the processed modes report raw scores for them.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from fathom.step import LogprobsArrays
from fathom.worker.sample.slices import row_slices

LogprobsMode = Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]


def scores(logits: torch.Tensor, mode: LogprobsMode) -> torch.Tensor:
    """What the mode reports of these logits: a new tensor [rows, vocab_size] float32."""
    logits = logits.to(torch.float32, copy=True)
    if mode.endswith("logits"):
        return logits
    for piece in row_slices(logits.shape, logits.device):
        logits[piece] = logits[piece].log_softmax(dim=-1)
    return logits


def gather(row_scores: torch.Tensor, targets: torch.Tensor, k: int) -> LogprobsArrays:
    """The targets' scores and ranks, and the k best.

    Args:
        row_scores: [rows, vocab_size] float32.
        targets: [rows] int64, one token per row.
        k: number of best tokens; 0 for none, -1 for the whole vocabulary.

    Returns:
        Arrays of width 1 + k, the target first. A target's rank is 1 + the number of tokens above it.
    """
    vocab_size = row_scores.shape[1]
    k = vocab_size if k < 0 else min(k, vocab_size)
    slices = row_slices(row_scores.shape, row_scores.device)
    return _concatenate([_gather_slice(row_scores[piece], targets[piece], k) for piece in slices])


def prompt_logprobs(
    logits: torch.Tensor, targets: np.ndarray, k: int, mode: LogprobsMode = "raw_logprobs"
) -> LogprobsArrays:
    """Logprobs of prompt tokens, scored in slices: those of a long prompt would take gigabytes at once.

    Args:
        logits: [positions, vocab_size], the model's logits at each position; at least one.
        targets: [positions] of any integer type, the token that follows each position.
        k: number of best tokens; 0 for none, -1 for the whole vocabulary.
        mode: see above.
    """
    target_ids = torch.from_numpy(targets.astype(np.int64)).to(logits.device)
    slices = row_slices(logits.shape, logits.device)
    return _concatenate([gather(scores(logits[piece], mode), target_ids[piece], k) for piece in slices])


def _gather_slice(row_scores: torch.Tensor, targets: torch.Tensor, k: int) -> LogprobsArrays:
    targets = targets.unsqueeze(1)
    target_scores = row_scores.gather(1, targets)
    ranks = (row_scores > target_scores).sum(dim=-1) + 1
    best = row_scores.topk(k, dim=-1)
    return LogprobsArrays(
        token_ids=torch.cat([targets, best.indices], dim=1).to(torch.int32).cpu().numpy(),
        logprobs=torch.cat([target_scores, best.values], dim=1).cpu().numpy(),
        ranks=ranks.to(torch.int32).cpu().numpy(),
    )


def _concatenate(pieces: list[LogprobsArrays]) -> LogprobsArrays:
    return LogprobsArrays(
        token_ids=np.concatenate([piece.token_ids for piece in pieces]),
        logprobs=np.concatenate([piece.logprobs for piece in pieces]),
        ranks=np.concatenate([piece.ranks for piece in pieces]),
    )
