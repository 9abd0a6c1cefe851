"""Brings a matrix from a checkpoint into the kernels' order, some rows at a time: as it is stored, or quantised.

As it is stored nothing is lost: a GGUF file's integers and scales become those of a PackedWeight, floats of 16 or 32
bits a FloatWeight. Otherwise floats are rounded on the way, so that no second copy of the model comes to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from fathom.errors import CheckpointError
from fathom.kernels.quantise_weights import quantise_weights
from fathom.quant.float_weight import DTYPES, FloatWeight, empty_float_weight, put_rows
from fathom.quant.ggml_codes import Codes, codes, has_codes
from fathom.quant.huge_pages import empty
from fathom.quant.packed import COLUMN_STEP, PANEL, PackedWeight, pack
from fathom.weights.checkpoint import GGUFCheckpoint

if TYPE_CHECKING:
    from fathom.weights.checkpoint import Checkpoint

Quantization = Literal["int8", "int4", "fp16"]

# Elements at a time: what lies unpacked in between fits a core's cache, and no second copy of an embedding of
# hundreds of megabytes comes to be.
CHUNK = 1 << 19

BITS = {"int8": 8, "int4": 4}

Rows = slice | np.ndarray
"""Which rows of a checkpoint's matrix: a range, or their numbers."""


def read_matrix(
    checkpoint: Checkpoint, name: str, row_order: np.ndarray | None, quantization: Quantization | None
) -> PackedWeight | FloatWeight:
    """The matrix called ``name``, in the kernels' order.

    Args:
        row_order: for each row of the result its number in the file; None where the order is the same.
        quantization: what floats are rounded to; None leaves them as they are. A matrix that the file holds
            quantised stays as it is.

    Raises:
        CheckpointError: its bytes cannot be read, or it cannot be quantised so; names the file or the tensor.
    """
    if isinstance(checkpoint, GGUFCheckpoint) and has_codes(checkpoint.ggml_type(name)):
        return _packed(checkpoint, name, row_order, lambda rows: codes(*checkpoint.packed(name, rows)))
    if quantization is None or quantization == "fp16":
        return _floats(checkpoint, name, row_order, quantization)
    columns = checkpoint.shape(name)[1]
    if columns % COLUMN_STEP:
        raise CheckpointError(
            f"{name} has {columns} columns; quantization={quantization} needs a multiple of {COLUMN_STEP}.",
            parameter="quantization",
            value=quantization,
            hint="Use quantization=fp16, or none.",
        )

    def quantised(rows: Rows) -> Codes:
        some = checkpoint.rows(name, rows).float()
        _half(some, name, quantization)
        return quantise_weights(some, BITS[quantization])

    return _packed(checkpoint, name, row_order, quantised)


def _packed(
    checkpoint: Checkpoint, name: str, row_order: np.ndarray | None, read: Callable[[Rows], Codes]
) -> PackedWeight:
    num_rows, columns = checkpoint.shape(name)
    whole: PackedWeight | None = None
    for start, rows in _chunks(num_rows, columns, row_order):
        found = read(rows)
        some = pack(found.codes, found.scales, found.minimums, found.bits)
        whole = whole or _like(some, num_rows)
        _put(some, whole, start // PANEL)
    assert whole is not None
    return whole


def _floats(
    checkpoint: Checkpoint, name: str, row_order: np.ndarray | None, quantization: Literal["fp16"] | None
) -> FloatWeight:
    num_rows, columns = checkpoint.shape(name)
    whole: FloatWeight | None = None
    for start, rows in _chunks(num_rows, columns, row_order):
        some = checkpoint.rows(name, rows)
        if quantization is not None:
            some = _half(some, name, quantization)
        elif some.dtype not in DTYPES:
            some = some.float()
        whole = whole or empty_float_weight(num_rows, columns, some.dtype)
        put_rows(whole, start, some)
    assert whole is not None
    return whole


def _half(numbers: torch.Tensor, name: str, quantization: Quantization) -> torch.Tensor:
    """In float16, which is also what scales are stored in."""
    half = numbers.half()
    if not half.isfinite().all():
        raise CheckpointError(
            f"{name} has numbers that float16 cannot hold.",
            parameter="quantization",
            value=quantization,
            hint="Leave it out.",
        )
    return half


def _chunks(num_rows: int, columns: int, row_order: np.ndarray | None) -> Iterator[tuple[int, Rows]]:
    """(first row of ours, which rows of the file) of pieces that are whole panels."""
    step = max(PANEL, CHUNK // columns // PANEL * PANEL)
    for start in range(0, num_rows, step):
        wanted = slice(start, min(num_rows, start + step))
        yield start, wanted if row_order is None else row_order[wanted]


def _like(some: PackedWeight, rows: int) -> PackedWeight:
    """An uninitialised weight with this number of rows and the format of ``some``."""
    panels = -(-rows // PANEL)
    return some.with_tensors([empty((panels, *tensor.shape[1:]), tensor.dtype) for tensor in some.tensors], rows)


def _put(some: PackedWeight, whole: PackedWeight, panel: int) -> None:
    """Copy the panels of ``some`` to those of ``whole`` from number ``panel`` on."""
    for source, target in zip(some.tensors, whole.tensors, strict=True):
        target[panel : panel + len(source)] = source
