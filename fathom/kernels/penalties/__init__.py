"""Penalties on tokens that have occurred, in place and on those tokens alone.

    apply_penalties(logits, rows, penalties, token_ids, counts)

        logits     [..., vocab_size] float32
        rows       [n] int64, the rows of the logits that are meant
        penalties  [n, 3] float32: repetition, frequency, presence
        token_ids  n arrays of any length, int64: each row's tokens, none twice
        counts     n arrays of the same lengths, float32: how often the row's output has each of them

In this order, for a token that the output has `count` times:

    repetition   logit > 0: logit / repetition, else logit * repetition
    frequency    logit - frequency * count
    presence     logit - presence if count > 0
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fathom.kernels.choice import implementation


def apply_penalties(
    logits: torch.Tensor,
    rows: np.ndarray,
    penalties: np.ndarray,
    token_ids: Sequence[np.ndarray],
    counts: Sequence[np.ndarray],
) -> None:
    """Penalise each row's tokens."""
    implementation(__name__, logits).apply_penalties(logits, rows, penalties, token_ids, counts)
