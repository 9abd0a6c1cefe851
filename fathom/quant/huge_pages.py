"""Memory for weights that the processor finds with few page-table walks: pages of 2 MiB instead of 4 KiB.

A decode step reads every weight once, so it touches every page once: with pages of 4 KiB a table walk for each 4 KiB of
weights, and a prefetcher that stops at each page's end. So large matrices are made by `empty`, in mappings of
their own, and small ones are moved together by `HugePages` once they are complete, since a page must be filled to be
worth having.
"""

from __future__ import annotations

import torch

from fathom.pages import map_huge_pages

MAPPING = 1 << 24  # what is not touched of it takes no memory
ALIGNMENT = 64  # bytes: a cache line


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Uninitialised, on the CPU; with MAPPING bytes or more, in huge pages."""
    nbytes = torch.Size(shape).numel() * dtype.itemsize
    memory = _map(nbytes) if nbytes >= MAPPING else None
    return torch.empty(shape, dtype=dtype) if memory is None else memory[:nbytes].view(dtype).view(shape)


class HugePages:
    """Takes small tensors in; what it took in stays until the last tensor of its mapping is gone."""

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a CPU tensor in such memory; the tensor itself if `empty` made it so, or where there is none."""
        if tensor.device.type != "cpu" or not 0 < tensor.nbytes < MAPPING:
            return tensor
        size = -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        if size > len(self._free):
            memory = _map(MAPPING)
            if memory is None:
                return tensor
            self._free = memory
        place, self._free = self._free[: tensor.nbytes], self._free[size:]
        return place.view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _map(nbytes: int) -> torch.Tensor | None:
    memory = map_huge_pages(nbytes)
    return None if memory is None else torch.from_numpy(memory)
