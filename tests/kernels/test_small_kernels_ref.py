"""The small kernels against their formulas, written out in float64."""

from __future__ import annotations

import math

import pytest
import torch

from fathom.kernels.activation.ref import gelu_tanh_and_mul, silu_and_mul
from fathom.kernels.kv_write.ref import write_kv
from fathom.kernels.norm.ref import add_rms_norm, rms_norm
from fathom.kernels.rotary.ref import apply_rotary

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


def test_rotary_turns_pairs() -> None:
    x = randn(5, 2, 6)
    angles = randn(5, 3)
    turned = apply_rotary(x, angles.cos(), angles.sin())
    pairs = torch.complex(x[..., :3].double(), x[..., 3:].double())
    expected = pairs * torch.polar(torch.ones(5, 1, 3).double(), angles[:, None].double())
    torch.testing.assert_close(turned.double(), torch.cat((expected.real, expected.imag), -1), **CLOSE)


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


def test_write_kv_touches_only_its_slots() -> None:
    cache = torch.zeros(2, 6, 4, 2, 3)
    key, value = randn(3, 2, 3), randn(3, 3, 3)[:, :2]
    slots = [4, 23, 9]
    write_kv(key, value, *cache, torch.tensor(slots))
    flat = cache.view(2, 24, 2, 3)
    assert torch.equal(flat[0, slots], key)
    assert torch.equal(flat[1, slots], value)
    untouched = [slot for slot in range(24) if slot not in slots]
    assert not flat[:, untouched].any()
