"""Linear layers: plain, and merged ones that hold several projections of the same input as one matrix.

A layer says *what* is multiplied; its LinearMethod says *how* the weight is stored and applied. Dense is the
plain method; Packed (packed.py) keeps quantised weights as they are, and no model file changes.

    QKVLinear.weight     [q rows | k rows | v rows]      one product instead of three
    GateUpLinear.weight  [gate rows | up rows]           one product instead of two

Among several ranks matrices are cut in pairs, so that one sum for each pair is all that the ranks have to say to each
other (Shoeybi et al., Megatron-LM, 2019). The first of a pair is cut between rows, and each rank gets its own outputs;
the second, a RowParallelLinear, between columns, and takes just those outputs in:

    rank 0   x -> [ q0 k0 v0 ] -> attention -> [ output, left columns  ] -+
                                                                          + -> sum
    rank 1   x -> [ q1 k1 v1 ] -> attention -> [ output, right columns ] -+
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from fathom.dist.shares import Cut, even_cut, head_share, uncut
from fathom.kernels.embedding import embedding
from fathom.quant.packed import COLUMN_STEP, STEP_COLUMNS

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
    scales: nn.Parameter  # of the weight's rows, if the method is FP8

    def __init__(self, in_features: int, out_features: int, build: BuildContext, *, bias: bool = False):
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.method = self.choose_method(build)
        self.method.create_weights(self, build)
        self.bias = build.empty(out_features) if bias else None

    def choose_method(self, build: BuildContext) -> LinearMethod:
        """How this layer's matrix is stored and multiplied."""
        return build.linear_method

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.method.multiply(self, x)

    def row_cut(self, part: str | None) -> Cut:
        """Which rows of the checkpoint's matrix (of that part of a merged one) this rank holds."""
        return uncut(self.out_features)

    def column_cut(self) -> Cut:
        """Which of its columns."""
        return uncut(self.in_features)

    def part_bytes(self) -> int:
        """Memory that the matrix takes beside `weight`."""
        return sum(part.matrix.nbytes for part in getattr(self, "parts", ()))


class RowParallelLinear(Linear):
    """A rank's columns of a matrix; the output is the sum over the ranks, whole on each of them."""

    def __init__(self, columns: Cut, out_features: int, build: BuildContext, *, bias: bool = False):
        super().__init__(columns.size, out_features, build, bias=bias)
        self._columns = columns
        self._group = build.tensor
        self.adds_bias = build.tensor.rank == 0  # the bias is to be in the sum once; the others' is zero

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._group.all_reduce(self.method.multiply(self, x))

    def column_cut(self) -> Cut:
        return self._columns


class MergedLinear(Linear):
    """A rank's rows of several projections of one input; ``rows[name]`` says which output rows are whose."""

    def __init__(self, in_features: int, parts: dict[str, Cut], build: BuildContext, *, bias: bool = False):
        super().__init__(in_features, sum(cut.size for cut in parts.values()), build, bias=bias)
        self._cuts = parts
        edges = accumulate((cut.size for cut in parts.values()), initial=0)
        self.rows = {name: slice(*edge) for name, edge in zip(parts, pairwise(edges), strict=True)}

    def row_cut(self, part: str | None) -> Cut:
        assert part is not None
        return self._cuts[part]


class QKVLinear(MergedLinear):
    """The query, key and value projections of one attention layer; an output row is [queries | keys | values].

    heads: those of this rank.
    """

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
        heads = head_share(num_heads, num_kv_heads, build.tensor.rank, build.tensor.size)
        query, kv = heads.query.times(head_dim), heads.kv.times(head_dim)
        super().__init__(hidden_size, {"q": query, "k": kv, "v": kv}, build, bias=bias)
        self.heads = heads


class GateUpLinear(MergedLinear):
    """The gate and up projections of one gated feed-forward layer; the output holds the gate first.

    cut: which of the intermediate_size outputs of each projection are this rank's: whole groups of what is quantised.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, build: BuildContext, *, bias: bool = False):
        whole_steps = intermediate_size % STEP_COLUMNS == 0 and intermediate_size // STEP_COLUMNS >= build.tensor.size
        unit = STEP_COLUMNS if whole_steps else COLUMN_STEP
        cut = even_cut(intermediate_size, build.tensor.rank, build.tensor.size, unit)
        super().__init__(hidden_size, {"gate": cut, "up": cut}, build, bias=bias)
        self.cut = cut
