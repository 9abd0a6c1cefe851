"""Linear layers: plain, and merged ones that hold several projections of the same input as one matrix.

A layer says *what* is multiplied; its LinearMethod says *how* the weight is stored and applied. Dense is the
plain method; Packed (packed.py) keeps quantised weights as they are, and no model file changes.

    QKVLinear.weight     [q rows | k rows | v rows]      one product instead of three
    GateUpLinear.weight  [gate rows | up rows]           one product instead of two
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from fathom.kernels.embedding import embedding

if TYPE_CHECKING:
    from fathom.layers.build import BuildContext
    from fathom.layers.packed import Part


class LinearMethod(Protocol):
    """How a layer stores its matrix, multiplies by it, and looks up rows of it."""

    def create_weights(self, layer: Linear, build: BuildContext) -> None:
        """Register the layer's weight parameters, uninitialised."""

    def multiply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        """x [..., in_features] -> [..., out_features], the bias included."""

    def look_up(self, layer: Linear, row_ids: torch.Tensor, factor: float) -> torch.Tensor:
        """row_ids [n] int64 -> [n, in_features], the rows times the factor."""


class Dense:
    """The weight as one matrix [out_features, in_features] in the model's dtype."""

    def create_weights(self, layer: Linear, build: BuildContext) -> None:
        layer.weight = build.empty(layer.out_features, layer.in_features)

    def multiply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, layer.weight, layer.bias)

    def look_up(self, layer: Linear, row_ids: torch.Tensor, factor: float) -> torch.Tensor:
        return embedding(row_ids, layer.weight, factor)


class Linear(nn.Module):
    """y = x W^T + b."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    parts: list[Part]  # in place of the weight, if the method is Packed

    def __init__(self, in_features: int, out_features: int, build: BuildContext, *, bias: bool = False):
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.method = build.linear_method
        self.method.create_weights(self, build)
        self.bias = build.empty(out_features) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.method.multiply(self, x)

    def part_bytes(self) -> int:
        """Memory that the matrix takes beside `weight`."""
        return sum(part.matrix.nbytes for part in getattr(self, "parts", ()))


class MergedLinear(Linear):
    """Several projections of one input; ``rows[name]`` says which output rows are whose, for the loader."""

    def __init__(self, in_features: int, parts: dict[str, int], build: BuildContext, *, bias: bool = False):
        super().__init__(in_features, sum(parts.values()), build, bias=bias)
        edges = accumulate(parts.values(), initial=0)
        self.rows = {name: slice(*edge) for name, edge in zip(parts, pairwise(edges), strict=True)}


class QKVLinear(MergedLinear):
    """The query, key and value projections of one attention layer; an output row is [queries | keys | values]."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        build: BuildContext,
        *,
        bias: bool = False,
    ):
        q_size, kv_size = num_heads * head_dim, num_kv_heads * head_dim
        super().__init__(hidden_size, {"q": q_size, "k": kv_size, "v": kv_size}, build, bias=bias)


class GateUpLinear(MergedLinear):
    """The gate and up projections of one gated feed-forward layer; the output holds the gate first."""

    def __init__(self, hidden_size: int, intermediate_size: int, build: BuildContext, *, bias: bool = False):
        super().__init__(hidden_size, {"gate": intermediate_size, "up": intermediate_size}, build, bias=bias)
