"""Log-probabilities: which scores are reported.

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

from fathom.kernels.gpu import to_device
from fathom.kernels.token_logprobs import TokenScores, token_logprobs

LogprobsMode = Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]


def is_processed(mode: LogprobsMode) -> bool:
    """Whether scores are of what was sampled from, not of the model's logits."""
    return mode.startswith("processed")


def is_normalised(mode: LogprobsMode) -> bool:
    """Whether scores are log-probabilities, not logits."""
    return mode.endswith("logprobs")


def prompt_logprobs(
    logits: torch.Tensor, targets: np.ndarray, k: int, mode: LogprobsMode = "raw_logprobs"
) -> TokenScores:
    """Logprobs of prompt tokens.

    Args:
        logits: [positions, vocab_size], the model's logits at each position; at least one.
        targets: [positions] of any integer type, the token that follows each position.
        k: number of best tokens; 0 for none, -1 for the whole vocabulary.
        mode: see above.
    """
    vocab_size = logits.shape[1]
    k = vocab_size if k < 0 else min(k, vocab_size)
    targets_there = to_device(targets.astype(np.int64), logits.device)
    return token_logprobs(logits.to(torch.float32), np.arange(len(targets)), targets_there, k, is_normalised(mode))
