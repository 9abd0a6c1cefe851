"""Brings a GGUF matrix from the file's blocks into the kernels' order, some rows at a time, losing nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fathom.quant.ggml_codes import codes, has_codes
from fathom.quant.packed import PANEL, PackedWeight, pack

if TYPE_CHECKING:
    from fathom.weights.checkpoint import GGUFCheckpoint

# Elements at a time: what lies unpacked in between fits a core's cache, and no second copy of an embedding of
# hundreds of megabytes comes to be.
CHUNK = 1 << 19


def repack(checkpoint: GGUFCheckpoint, name: str, row_order: np.ndarray | None) -> PackedWeight | torch.Tensor:
    """The matrix called ``name``, still quantised; as float32 if the file holds it in a plain float format.

    row_order: for each row of the result its number in the file; None where the order is the same.

    Raises:
        CheckpointError: its bytes cannot be read; names the file and the tensor.
    """
    if not has_codes(checkpoint.ggml_type(name)):
        tensor = checkpoint.load(name)
        return tensor if row_order is None else tensor[torch.from_numpy(row_order)]
    rows, columns = checkpoint.shape(name)
    step = max(PANEL, CHUNK // columns // PANEL * PANEL)
    whole: PackedWeight | None = None
    for start in range(0, rows, step):
        wanted = slice(start, start + step)
        some = _repack_rows(checkpoint, name, wanted if row_order is None else row_order[wanted])
        whole = whole or _like(some, rows)
        _put(some, whole, start // PANEL)
    assert whole is not None
    return whole


def _repack_rows(checkpoint: GGUFCheckpoint, name: str, rows: slice | np.ndarray) -> PackedWeight:
    found = codes(*checkpoint.packed(name, rows))
    return pack(found.codes, found.scales, found.minimums, found.bits)


def _like(some: PackedWeight, rows: int) -> PackedWeight:
    """An uninitialised weight with this number of rows and the format of ``some``."""
    panels = -(-rows // PANEL)

    def empty(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.new_empty(panels, *tensor.shape[1:])

    minimums = None if some.minimums is None else empty(some.minimums)
    return PackedWeight(empty(some.quants), empty(some.scales), minimums, rows, some.columns, some.bits, some.group)


def _put(some: PackedWeight, whole: PackedWeight, panel: int) -> None:
    """Copy the panels of ``some`` to those of ``whole`` from number ``panel`` on."""
    end = panel + some.quants.shape[0]
    whole.quants[panel:end] = some.quants
    whole.scales[panel:end] = some.scales
    if whole.minimums is not None and some.minimums is not None:
        whole.minimums[panel:end] = some.minimums
