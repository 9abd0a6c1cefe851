"""Brings a matrix from a checkpoint into the kernels' order, some rows at a time: as it is stored, or quantised.

As it is stored nothing is lost: a GGUF file's integers and scales become those of a PackedWeight, floats of 16 or 32
bits a FloatWeight. Otherwise numbers are rounded on the way, so that no second copy of the model comes to be.
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
from fathom.weights.checkpoint import GGUFCheckpoint, Rows, blocks_around

if TYPE_CHECKING:
    from fathom.weights.checkpoint import Checkpoint

Quantization = Literal["int8", "int4", "fp16"]

# Elements at a time: what lies unpacked in between fits a core's cache, and no second copy of an embedding of
# hundreds of megabytes comes to be.
CHUNK = 1 << 19

BITS = {"int8": 8, "int4": 4}


def read_matrix(
    checkpoint: Checkpoint,
    name: str,
    rows: Rows,
    columns: slice,
    quantization: Quantization | None,
    rounded: torch.dtype | None = None,
) -> PackedWeight | FloatWeight:
    """A matrix, or a part of one, in the kernels' order.

    Args:
        name: of the matrix in the checkpoint.
        rows: which of its rows, in the order in which they are wanted.
        columns: which of its columns; if it is, or is to be, quantised, whole groups of them.
        quantization: what floats are rounded to; None leaves them as they are. A matrix that the file holds
            quantised stays as it is.
        rounded: the dtype that any matrix is rounded to, one that the file holds quantised too; None for none. Not
            beside a quantization.

    Raises:
        CheckpointError: its bytes cannot be read, or it cannot be quantised or cut so; names the file or the tensor.
    """
    if rounded is not None:
        return _floats(checkpoint, name, rows, columns, lambda some: some.to(rounded))
    if isinstance(checkpoint, GGUFCheckpoint) and has_codes(kind := checkpoint.ggml_type(name)):
        _check_columns(checkpoint, name, columns, kind.block_elements, kind.name, "Use dtype=float32.")
        blocks, _ = blocks_around(columns, kind)
        return _packed(rows, columns, lambda some: codes(*checkpoint.packed(name, some, blocks)))
    if quantization is None:
        return _floats(checkpoint, name, rows, columns, lambda some: some if some.dtype in DTYPES else some.float())
    if quantization == "fp16":
        return _floats(checkpoint, name, rows, columns, lambda some: _half(some, name, "fp16"))
    what = f"quantization={quantization}"
    _check_columns(checkpoint, name, columns, COLUMN_STEP, what, "Use quantization=fp16, or none.")

    def quantised(some_rows: Rows) -> Codes:
        some = checkpoint.part(name, some_rows, columns).float()
        _half(some, name, quantization)
        return quantise_weights(some, BITS[quantization])

    return _packed(rows, columns, quantised)


def _check_columns(checkpoint: Checkpoint, name: str, columns: slice, step: int, what: str, way_out: str) -> None:
    """Only whole groups can be quantised; a format's own blocks see to that unless the matrix is cut."""
    size, whole = columns.stop - columns.start, checkpoint.shape(name)[1]
    if size % step == 0 and columns.start % step == 0:
        return
    if size == whole:
        problem, hint = f"{name} has {whole} columns", way_out
    else:
        problem = f"{name} is cut to its columns {columns.start} to {columns.stop}"
        hint = f"{way_out.removesuffix('.')}, or another tensor_parallel_size."
    raise CheckpointError(
        f"{problem}; {what} needs a multiple of {step}.", parameter="quantization", value=what, hint=hint
    )


def _packed(rows: Rows, columns: slice, read: Callable[[Rows], Codes]) -> PackedWeight:
    whole: PackedWeight | None = None
    for start, some_rows in _chunks(rows, columns):
        found = read(some_rows)
        some = pack(found.codes, found.scales, found.minimums, found.bits)
        whole = whole or _like(some, _count(rows))
        _put(some, whole, start // PANEL)
    assert whole is not None
    return whole


def _floats(
    checkpoint: Checkpoint,
    name: str,
    rows: Rows,
    columns: slice,
    converted: Callable[[torch.Tensor], torch.Tensor],
) -> FloatWeight:
    whole: FloatWeight | None = None
    for start, some_rows in _chunks(rows, columns):
        some = converted(checkpoint.part(name, some_rows, columns))
        whole = whole or empty_float_weight(_count(rows), some.shape[1], some.dtype)
        put_rows(whole, start, some)
    assert whole is not None
    return whole


def _count(rows: Rows) -> int:
    return len(rows) if isinstance(rows, np.ndarray) else rows.stop - rows.start


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


def _chunks(rows: Rows, columns: slice) -> Iterator[tuple[int, Rows]]:
    """(first row of ours, which rows of the file) of pieces that are whole panels."""
    count = _count(rows)
    step = max(PANEL, CHUNK // (columns.stop - columns.start) // PANEL * PANEL)
    for start in range(0, count, step):
        stop = min(count, start + step)
        yield start, rows[start:stop] if isinstance(rows, np.ndarray) else slice(rows.start + start, rows.start + stop)


def _like(some: PackedWeight, rows: int) -> PackedWeight:
    """An uninitialised weight with this number of rows and the format of ``some``."""
    panels = -(-rows // PANEL)
    return some.with_tensors([empty((panels, *tensor.shape[1:]), tensor.dtype) for tensor in some.tensors], rows)


def _put(some: PackedWeight, whole: PackedWeight, panel: int) -> None:
    """Copy the panels of ``some`` to those of ``whole`` from number ``panel`` on."""
    for source, target in zip(some.tensors, whole.tensors, strict=True):
        target[panel : panel + len(source)] = source
