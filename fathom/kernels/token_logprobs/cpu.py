"""Scores of tokens by the native kernel: one pass over a row, and no sort but of the k best."""

from __future__ import annotations

import numpy as np
import torch

from fathom.kernels.native import cpu
from fathom.kernels.token_logprobs.scores import TokenScores


def token_logprobs(
    logits: torch.Tensor, rows: np.ndarray, targets: torch.Tensor, k: int, normalised: bool
) -> TokenScores:
    """See the package's docstring for shapes and rules."""
    logits = logits.contiguous()
    scores = TokenScores.empty(len(rows), k, logits.device)
    address, bytes_of_cells = scores.packed.data_ptr(), len(rows) * scores.width * scores.packed.itemsize
    cpu.token_logprobs(
        address, address + bytes_of_cells, address + 2 * bytes_of_cells,
        logits.data_ptr(), rows.ctypes.data, targets.data_ptr(), len(rows), logits.shape[1], k, normalised,
    )  # fmt: skip
    return scores
