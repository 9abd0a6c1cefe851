"""The small native kernels at every level: equal to their formulas, and a row to itself beside other rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch

from fathom.kernels.activation import cpu as activation
from fathom.kernels.norm import cpu as norm
from fathom.kernels.norm import ref as norm_ref

native = pytest.importorskip("fathom._cpu")

SIZES = [1, 3, 8, 20, 64, 100, 576, 1153]


@pytest.fixture(autouse=True, params=native.levels())
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    before, threads = native.level(), native.num_threads()
    native.use_level(request.param)
    native.set_num_threads(2)
    yield request.param
    native.use_level(before)
    native.set_num_threads(threads)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("size", SIZES)
def test_norm(size: int) -> None:
    x, residual, weight = randn(70, size), randn(71, size)[1:], randn(size)
    torch.testing.assert_close(norm.rms_norm(x, weight, 1e-5), norm_ref.rms_norm(x, weight, 1e-5))
    normed, total = norm.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, norm.rms_norm(total, weight, 1e-5))
    assert torch.equal(norm.rms_norm(x[60:61], weight, 1e-5), norm.rms_norm(x, weight, 1e-5)[60:61])


@pytest.mark.parametrize("size", SIZES)
def test_activations(size: int) -> None:
    x = randn(40, 2 * size) * 10
    gate, up = x.double().chunk(2, -1)
    for kernel, act in (
        (activation.silu_and_mul, torch.nn.functional.silu),
        (activation.gelu_tanh_and_mul, partial(torch.nn.functional.gelu, approximate="tanh")),
    ):
        result = kernel(x)
        # Below the last digits of gate * up: where an activation is nearly 0, its own digits are not asked for.
        torch.testing.assert_close(result.double(), act(gate) * up, rtol=1e-5, atol=1e-9)
        assert torch.equal(kernel(x[33:34]), result[33:34])


def test_silu_shows_the_exponential_over_its_whole_range() -> None:
    """silu(x) = x / (1 + e^-x), so e^-x can be read off it, and its limits."""
    x = torch.linspace(-87.9, 87.9, 100_001)
    result = activation.silu_and_mul(torch.cat((x, torch.ones_like(x)))[None])[0]
    torch.testing.assert_close(result.double(), x.double() / (1 + (-x.double()).exp()), rtol=1e-6, atol=1e-37)
    far = torch.tensor([[-1e4, -100.0, 0.0, 100.0, 1e4, 1.0, 1.0, 1.0, 1.0, 1.0]])
    assert activation.silu_and_mul(far).tolist() == [[0.0, 0.0, 0.0, 100.0, 1e4]]
