"""Arena: buffers that keep their addresses, for the intermediate tensors of recorded steps.

A step that is replayed writes where it wrote when it was recorded, so its tensors must come from memory that
nobody else gets. Every buffer holds `max_rows` rows of some size; a tensor whose first dimension is a step's rows
takes the first of them. So steps of all sizes share the same few buffers.
"""

from __future__ import annotations

import sys
from collections import defaultdict

import numpy as np
import torch

_ALIGNMENT = 64
"""Bytes: a cache line, and a vector register."""

_probe = [np.empty(0)]
_REFERENCES_OF_UNUSED = sys.getrefcount(_probe[0])


class Arena:
    """Hands out CPU tensors and takes a buffer back when the last tensor on it is gone.

    Args:
        max_rows: the most that the first dimension of a tensor may be.
    """

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._buffers: dict[int, list[np.ndarray]] = defaultdict(list)

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A contiguous tensor of the same shape and dtype on a buffer that no other living tensor uses."""
        rows = max(tensor.shape[0], 1) if tensor.dim() else 1
        buffer = self._unused_buffer(tensor.nbytes // rows)
        start = -buffer.ctypes.data % _ALIGNMENT
        return torch.from_numpy(buffer[start : start + tensor.nbytes]).view(tensor.dtype).view(tensor.shape)

    def _unused_buffer(self, row_bytes: int) -> np.ndarray:
        buffers = self._buffers[row_bytes]
        for index in range(len(buffers)):
            # The storage of a tensor, and so every view of it, holds a reference to its buffer.
            if sys.getrefcount(buffers[index]) == _REFERENCES_OF_UNUSED:
                return buffers[index]
        buffers.append(np.empty(row_bytes * self._max_rows + _ALIGNMENT, np.uint8))
        return buffers[-1]
