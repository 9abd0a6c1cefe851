"""Scores of tokens by the native kernel: two passes over a row, and no sort but of the k best."""

from __future__ import annotations

import numpy as np
import torch

from fathom.kernels.native import cpu
from fathom.step import LogprobsArrays


def token_logprobs(
    logits: torch.Tensor, rows: np.ndarray, targets: np.ndarray, k: int, normalised: bool
) -> LogprobsArrays:
    """See the package's docstring for shapes and rules."""
    logits = logits.contiguous()
    shape = (len(rows), 1 + k)
    arrays = LogprobsArrays(np.empty(shape, np.int32), np.empty(shape, np.float32), np.empty(len(rows), np.int32))
    cpu.token_logprobs(
        arrays.token_ids.ctypes.data, arrays.logprobs.ctypes.data, arrays.ranks.ctypes.data,
        logits.data_ptr(), rows.ctypes.data, targets.ctypes.data, len(rows), logits.shape[1], k, normalised,
    )  # fmt: skip
    return arrays
