"""Drawing tokens: the inverse of the cumulative distribution, at one uniform number per row.

No random state and no other row enters, so a row's token depends on its logits and its number alone.
"""

from __future__ import annotations

import numpy as np
import torch

from fathom.worker.sample.slices import row_slices

NO_TOKEN = -1


def draw(logits: torch.Tensor, uniforms: np.ndarray) -> torch.Tensor:
    """Draw one token per row from softmax(logits).

    Args:
        logits: [rows, vocab_size] float32; -inf for tokens that must not be drawn.
        uniforms: [rows] float64 in [0, 1).

    Returns:
        [rows] int64: the first token, in the order of ids, at which the cumulative probability exceeds
        uniform * total, hence never one of probability zero. NO_TOKEN for a row without finite logit or with
        NaN.
    """
    numbers = torch.from_numpy(uniforms).to(logits.device)
    tokens = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    # Made for the first slice and used again for the others: fresh memory would cost more than the sums.
    probs, cumulative = logits.new_empty(0), logits.new_empty(0, dtype=torch.float64)
    for piece in row_slices(logits.shape, logits.device):
        torch.softmax(logits[piece], dim=-1, out=probs.resize_(0))
        torch.cumsum(probs, dim=-1, dtype=torch.float64, out=cumulative.resize_(0))
        tokens[piece] = _invert(cumulative, numbers[piece])
    return tokens


def _invert(cumulative: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    total = cumulative[:, -1]
    # A float64 below 1 is at most 1 - 2**-53, so the product stays below the total even after rounding.
    target = uniforms * total
    tokens = torch.searchsorted(cumulative, target.unsqueeze(1), right=True).squeeze(1)
    return tokens.masked_fill_(~torch.isfinite(total), NO_TOKEN)
