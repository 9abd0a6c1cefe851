"""The small kernels against their formulas, written out in float64."""

from __future__ import annotations

import math

import pytest
import torch

from fathom.kernels.activation.ref import gelu_tanh_and_mul, silu_and_mul
from fathom.kernels.norm.ref import add_rms_norm, rms_norm

CLOSE = {"atol": 1e-6, "rtol": 1e-6}


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("shape", [(1, 8), (5, 3, 7)])
def test_rms_norm(shape: tuple[int, ...]) -> None:
    x, weight = randn(*shape), randn(shape[-1])
    wide = x.double()
    expected = wide / (wide.square().sum(-1, keepdim=True) / shape[-1] + 0.01).sqrt() * weight.double()
    torch.testing.assert_close(rms_norm(x, weight, 0.01).double(), expected, **CLOSE)


def test_rms_norm_of_bfloat16_rounds_once() -> None:
    x, weight = randn(4, 64).bfloat16(), randn(64)
    result = rms_norm(x, weight, 1e-6)
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, rms_norm(x.float(), weight, 1e-6).bfloat16())


def test_add_rms_norm() -> None:
    x, residual, weight = randn(3, 8), randn(3, 9)[:, 1:], randn(8)
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, rms_norm(x + residual, weight, 1e-5))


def test_silu_and_mul() -> None:
    x = randn(4, 10)
    gate, up = x[:, :5].double(), x[:, 5:].double()
    torch.testing.assert_close(silu_and_mul(x).double(), gate / (1 + (-gate).exp()) * up, **CLOSE)


def test_gelu_tanh_and_mul() -> None:
    x = randn(4, 10)
    gate, up = x[:, :5].double(), x[:, 5:].double()
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    expected = 0.5 * gate * (1 + inner.tanh()) * up
    torch.testing.assert_close(gelu_tanh_and_mul(x).double(), expected, **CLOSE)
