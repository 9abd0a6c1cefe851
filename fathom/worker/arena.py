"""Arena: buffers that keep their addresses, for the intermediate tensors of recorded steps.

A step that is replayed writes where it wrote when it was recorded, so its tensors must come from memory that
nobody else gets. Every buffer holds `max_rows` rows of some size; a tensor whose first dimension is a step's rows
takes the first of them. So steps of all sizes share the same few buffers.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import torch

_ALIGNMENT = 64
"""Bytes: a cache line, and a vector register."""

_probe = [np.empty(0)]
_REFERENCES_OF_UNUSED = sys.getrefcount(_probe[0])


class Place(NamedTuple):
    """Where in an arena a tensor lies. Unlike the tensor, its place keeps nothing from being handed out again."""

    row_bytes: int
    buffer: int
    shape: torch.Size
    dtype: torch.dtype


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
        row_bytes = _row_bytes(tensor)
        return self.tensor_at(Place(row_bytes, self._unused_buffer(row_bytes), tensor.shape, tensor.dtype))

    def tensor_at(self, place: Place) -> torch.Tensor:
        """The tensor of a place, with what was written there last."""
        buffer = self._buffers[place.row_bytes][place.buffer]
        start, nbytes = -buffer.ctypes.data % _ALIGNMENT, place.shape.numel() * place.dtype.itemsize
        return torch.from_numpy(buffer[start : start + nbytes]).view(place.dtype).view(place.shape)

    def place_of(self, tensor: torch.Tensor) -> Place:
        """Where a tensor that `empty_like` has made lies."""
        row_bytes = _row_bytes(tensor)
        (index,) = (
            index
            for index, buffer in enumerate(self._buffers[row_bytes])
            if buffer.ctypes.data <= tensor.data_ptr() < buffer.ctypes.data + buffer.nbytes
        )
        return Place(row_bytes, index, tensor.shape, tensor.dtype)

    def _unused_buffer(self, row_bytes: int) -> int:
        """Its index among those of that size."""
        buffers = self._buffers[row_bytes]
        for index in range(len(buffers)):
            # The storage of a tensor, and so every view of it, holds a reference to its buffer.
            if sys.getrefcount(buffers[index]) == _REFERENCES_OF_UNUSED:
                return index
        buffers.append(np.empty(row_bytes * self._max_rows + _ALIGNMENT, np.uint8))
        return len(buffers) - 1


def _row_bytes(tensor: torch.Tensor) -> int:
    rows = max(tensor.shape[0], 1) if tensor.dim() else 1
    return tensor.nbytes // rows
