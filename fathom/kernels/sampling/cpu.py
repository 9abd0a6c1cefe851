"""Choosing tokens by the native kernels, without a sort."""

from __future__ import annotations

import numpy as np
import torch

from fathom.kernels.native import cpu
from fathom.kernels.sampling.settings import DrawSettings


def best_tokens(logits: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    logits = logits.contiguous()
    token_ids = np.empty(len(rows), np.int64)
    cpu.best_tokens(token_ids.ctypes.data, logits.data_ptr(), _address(rows), len(rows), logits.shape[1])
    return torch.from_numpy(token_ids)


def draw_tokens(logits: torch.Tensor, rows: np.ndarray, settings: DrawSettings, uniforms: np.ndarray) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    logits = logits.contiguous()
    token_ids = np.empty(len(rows), np.int64)
    cpu.draw_tokens(
        token_ids.ctypes.data, _address(uniforms), logits.data_ptr(), _address(rows),
        *map(_address, settings), len(rows), logits.shape[1],
    )  # fmt: skip
    return torch.from_numpy(token_ids)


def truncate(logits: torch.Tensor, rows: np.ndarray, settings: DrawSettings) -> None:
    """See the package's docstring for shapes and rules; the logits are contiguous."""
    assert logits.is_contiguous()
    cpu.truncate_logits(logits.data_ptr(), _address(rows), *map(_address, settings), len(rows), logits.shape[1])


def _address(array: np.ndarray) -> int:
    assert array.flags.c_contiguous
    return array.ctypes.data
