"""Merged linears equal their parts, and a LinearMethod of one's own replaces the multiplication everywhere."""

from __future__ import annotations

import torch
from torch import nn

from fathom.layers.build import BuildContext
from fathom.layers.linear import Dense, GateUpLinear, Linear, LinearMethod, QKVLinear


def context(method: LinearMethod) -> BuildContext:
    return BuildContext(torch.float32, torch.device("cpu"), max_model_len=16, linear_method=method)


def fill(layer: nn.Module) -> None:
    generator = torch.Generator().manual_seed(3)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))


def test_a_qkv_row_holds_each_projection() -> None:
    layer = QKVLinear(8, num_heads=4, num_kv_heads=2, head_dim=3, build=context(Dense()), bias=True)
    fill(layer)
    x = torch.randn(5, 8)
    assert layer.rows == {"q": slice(0, 12), "k": slice(12, 18), "v": slice(18, 24)}
    for rows in layer.rows.values():
        torch.testing.assert_close(layer(x)[:, rows], x @ layer.weight[rows].T + layer.bias[rows])


def test_merged_rows_tile_the_weight() -> None:
    layer = GateUpLinear(8, 6, context(Dense()))
    assert layer.rows == {"gate": slice(0, 6), "up": slice(6, 12)}
    assert layer.weight.shape == (12, 8)
    assert layer.bias is None


class Scaled:
    """A toy quantisation: whole numbers and one scale."""

    def create_weights(self, layer: Linear, build: BuildContext) -> None:
        layer.levels = build.empty(layer.out_features, layer.in_features, dtype=torch.int8)
        layer.scale = build.empty(1)

    def multiply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        return x @ layer.levels.to(x.dtype).T * layer.scale


def test_a_method_decides_what_is_stored_and_how_it_is_multiplied() -> None:
    layer = GateUpLinear(8, 6, context(Scaled()))
    assert {name for name, _ in layer.named_parameters()} == {"levels", "scale"}
    layer.levels.fill_(3)
    layer.scale.fill_(0.5)
    assert torch.equal(layer(torch.ones(2, 8)), torch.full((2, 12), 12.0))
