"""Packed: a LinearMethod that computes with weights in the kernels' own layouts, quantised or of 16 or 32 bits.

A merged layer's projections may come in different formats (Q4_K_M mixes them), so a layer holds its matrix as
parts, each of which writes its own columns of the one output:

    qkv of [q | k | v] rows, q and k in 4 bits, v in 8:    parts   [ q and k | v ]
                                                           output  [ q, k    | v ]   two products

Neighbours in the same format become one part. The layer's ``weight`` is only declared: a name, a shape and a dtype for
the loader to check.

Panels of floats are the native kernels' order. On a GPU, where Triton's kernels do the work, floats are plain matrices
in the model's dtype, which torch multiplies; integers are packed there, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
import torch.nn.functional as F

from fathom.kernels import gpu
from fathom.kernels.embedding import embedding
from fathom.kernels.float_matmul import bfloat16_matmul, float_matmul
from fathom.kernels.quant_matmul import decoded_matmul, quant_matmul
from fathom.quant.float_weight import FloatWeight
from fathom.quant.huge_pages import HugePages, empty
from fathom.quant.packed import PANEL, PackedWeight

if TYPE_CHECKING:
    from fathom.layers.build import BuildContext
    from fathom.layers.linear import Linear

Matrix = PackedWeight | FloatWeight | torch.Tensor


class Part(NamedTuple):
    """Some rows of a layer's matrix; ``rows`` says which."""

    rows: slice
    matrix: Matrix


class Packed:
    """The matrix in parts, in the kernels' layouts. Activations are float32; on a GPU, of any dtype.

    device: where the weights are to lie.
    activations: what those that meet a PackedWeight are rounded to; "float32" leaves them as they are, as a GPU does.
    rounded: bfloat16 where all matrices are to be rounded to it, as are then the activations that meet them; None for
        matrices as they are stored.
    """

    def __init__(
        self,
        device: torch.device,
        activations: Literal["int8", "float32"] = "int8",
        rounded: torch.dtype | None = None,
    ) -> None:
        self.rounded = rounded
        self._device = device
        self._packed_matmul = quant_matmul if activations == "int8" else decoded_matmul
        self._float_matmul = float_matmul if rounded is None else bfloat16_matmul
        self._memory = HugePages()

    def create_weights(self, layer: Linear, build: BuildContext) -> None:
        layer.weight = build.declare(layer.out_features, layer.in_features)
        layer.parts = []

    def store(self, layer: Linear, rows: slice, matrix: PackedWeight | FloatWeight) -> None:
        """Take the matrix of these rows of the layer; called once for each projection, in any order."""
        placed = self._placed(matrix, layer.weight.dtype)
        layer.parts = sorted([*layer.parts, Part(rows, placed)], key=lambda part: part.rows.start)
        if sum(part.rows.stop - part.rows.start for part in layer.parts) == layer.out_features:
            layer.parts = [self._moved(part) for part in _joined(layer.parts)]

    def _placed(self, matrix: PackedWeight | FloatWeight, dtype: torch.dtype) -> Matrix:
        """The matrix on its device, in the form that its products read; one read from a file is on the host."""
        if not gpu.serves_device(self._device):
            return matrix
        there = matrix.with_tensors([tensor.to(self._device) for tensor in matrix.tensors], matrix.rows)
        return there if isinstance(there, PackedWeight) else there.dense().to(dtype)

    def _moved(self, part: Part) -> Part:
        if isinstance(part.matrix, torch.Tensor):
            return part
        tensors = [self._memory.take(tensor) for tensor in part.matrix.tensors]
        return part._replace(matrix=part.matrix.with_tensors(tensors, part.matrix.rows))

    def multiply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        if len(layer.parts) == 1:
            return self._product(x, layer.parts[0].matrix, layer.bias)
        output = x.new_empty(*x.shape[:-1], layer.out_features)
        for rows, matrix in layer.parts:
            self._product(x, matrix, None if layer.bias is None else layer.bias[rows], output[..., rows])
        return output

    def look_up(self, layer: Linear, row_ids: torch.Tensor, factor: float) -> torch.Tensor:
        (part,) = layer.parts
        return embedding(row_ids, part.matrix, factor, layer.weight.dtype)

    def _product(
        self, x: torch.Tensor, matrix: Matrix, bias: torch.Tensor | None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        if isinstance(matrix, PackedWeight):
            return self._packed_matmul(x, matrix, bias, out)
        if isinstance(matrix, torch.Tensor):
            product = F.linear(x, matrix, bias)
            return product if out is None else out.copy_(product)
        return self._float_matmul(x, matrix, bias, out)


def _joined(parts: list[Part]) -> list[Part]:
    """The parts, with neighbours in the same format made one: fewer products, each with more to share out."""
    joined = parts[:1]
    for part in parts[1:]:
        above = joined[-1]
        matrix = _stacked(above.matrix, part.matrix)
        if matrix is None:
            joined.append(part)
        else:
            joined[-1] = Part(slice(above.rows.start, part.rows.stop), matrix)
    return joined


def _stacked(above: Matrix, below: Matrix) -> Matrix | None:
    """Both matrices as one; None if they differ in format, or the first ends within a panel."""
    if isinstance(above, torch.Tensor) and isinstance(below, torch.Tensor):
        return torch.cat([above, below])
    if isinstance(above, torch.Tensor) or isinstance(below, torch.Tensor):
        return None
    if above.format != below.format or above.rows % PANEL:
        return None
    tensors = [_after_each_other(pair) for pair in zip(above.tensors, below.tensors, strict=True)]
    return above.with_tensors(tensors, above.rows + below.rows)


def _after_each_other(pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    above, below = pair
    if above.device.type != "cpu":
        return torch.cat(pair)
    both = empty((len(above) + len(below), *above.shape[1:]), above.dtype)
    return torch.cat(pair, out=both)
