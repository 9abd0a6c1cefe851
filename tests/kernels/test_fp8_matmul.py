"""Products with weights in 8-bit floats: plain torch beside the formula, Triton's interpreter beside plain torch."""

from __future__ import annotations

import pytest
import torch

from fathom.kernels.fp8_matmul import ref


def case(num_tokens: int, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, whose rows lie apart, weight, scales, bias."""
    chance = torch.Generator().manual_seed(rows)
    x = torch.randn(num_tokens, columns + 3, generator=chance)[:, 3:]
    weight = torch.randn(rows, columns, generator=chance).mul(30).to(torch.float8_e4m3fn)
    return x, weight, torch.rand(rows, generator=chance) + 0.1, torch.randn(rows, generator=chance)


def test_ref_is_the_product_with_the_widened_matrix() -> None:
    x, weight, scales, bias = case(3, 7, 50)
    exact = x.double() @ (weight.double() * scales.double()[:, None]).T + bias
    torch.testing.assert_close(ref.fp8_matmul(x, weight, scales, bias).double(), exact, rtol=1e-5, atol=1e-4)
    narrow = ref.fp8_matmul(x.bfloat16(), weight, scales)
    assert narrow.dtype is torch.bfloat16
    torch.testing.assert_close(narrow.double(), exact - bias, rtol=2e-2, atol=2.0)


@pytest.mark.parametrize(("num_tokens", "rows", "columns"), [(1, 7, 50), (33, 64, 64), (5, 130, 200), (0, 7, 50)])
def test_triton_is_ref(num_tokens: int, rows: int, columns: int) -> None:
    triton = pytest.importorskip("fathom.kernels.fp8_matmul.triton")
    x, weight, scales, bias = case(num_tokens, rows, columns)
    for some_bias in (None, bias):
        actual, expected = (module.fp8_matmul(x, weight, scales, some_bias) for module in (triton, ref))
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-3)
    half = triton.fp8_matmul(x.half(), weight, scales)
    torch.testing.assert_close(half, ref.fp8_matmul(x.half(), weight, scales), rtol=2e-3, atol=1e-2)


def test_a_token_s_bits_do_not_depend_on_the_others() -> None:
    triton = pytest.importorskip("fathom.kernels.fp8_matmul.triton")
    x, weight, scales, bias = case(40, 70, 100)
    whole = triton.fp8_matmul(x, weight, scales, bias)
    assert torch.equal(triton.fp8_matmul(x[35:36], weight, scales, bias), whole[35:36])
