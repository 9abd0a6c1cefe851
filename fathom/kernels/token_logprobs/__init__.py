"""Scores of chosen tokens and of the k best ones, for rows of logits.

    token_logprobs(logits, rows, targets, k, normalised) -> TokenScores

        logits      [..., vocab_size] float32
        rows        [n] int64, the rows of the logits that are meant
        targets     [n] int64, one token per row, where the logits are
        k           number of best tokens, at most vocab_size
        normalised  whether scores are log-softmax of the logits, or the logits

The target comes first, then the best tokens, larger logits before smaller and of equal ones lower ids before higher.
A target's rank is 1 + the number of tokens with a larger logit. A row with NaN or +inf, or all of it -inf, has NaN for
its scores, and what tokens and ranks it has is not specified. On a GPU the scores are returned before they are there.
"""

from __future__ import annotations

import numpy as np
import torch

from fathom.kernels.choice import implementation
from fathom.kernels.token_logprobs.scores import TokenScores

__all__ = ["TokenScores", "token_logprobs"]


def token_logprobs(
    logits: torch.Tensor, rows: np.ndarray, targets: torch.Tensor, k: int, normalised: bool
) -> TokenScores:
    """The targets' scores and ranks, and the k best tokens with their scores."""
    return implementation(__name__, logits).token_logprobs(logits, rows, targets, k, normalised)
