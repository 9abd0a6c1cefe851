"""Packed weights in Triton's interpreter, in every format: products and rows beside the decoded matrix's."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from fathom.kernels.embedding import triton as embedding_triton
from fathom.kernels.embedding.triton import embedding
from fathom.kernels.quant_matmul.triton import decoded_matmul
from tests.quant.random_weights import ALL, Format, random_weight, whole_steps


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("form", ALL)
def test_the_product_is_that_of_the_decoded_matrix(form: Format, dtype: torch.dtype) -> None:
    """x and the output are parts of wider rows of NaN; the last panel and the last tile of tokens are not full."""
    columns = whole_steps(96, form)
    weight, bias = random_weight(71, columns, form), randn(71)
    x = torch.full((35, columns + 6), torch.nan, dtype=dtype)[:, 3:-3]
    x[:] = randn(35, columns)
    wide = torch.full((35, 80), torch.nan, dtype=dtype)
    assert decoded_matmul(x, weight, bias, wide[:, 4:75]).data_ptr() == wide[:, 4:].data_ptr()
    expected = x.double() @ weight.dense().to(dtype).double().T + bias
    tolerance = 1e-5 if dtype is torch.float32 else 2e-3
    torch.testing.assert_close(
        wide[:, 4:75].double(), expected, rtol=tolerance, atol=tolerance * expected.abs().mean().item()
    )
    assert wide[:, :4].isnan().all()
    assert wide[:, 75:].isnan().all()


def test_a_token_is_the_same_whatever_is_beside_it() -> None:
    """At the same place in a tile: the interpreter multiplies by BLAS, where a place may change the last bit."""
    weight, x = random_weight(20, 96, ALL[0]), randn(2, 32, 96)
    together = decoded_matmul(x, weight)
    assert together.shape == (2, 32, 20)
    assert torch.equal(decoded_matmul(x[1, 0], weight), together[1, 0])
    assert torch.equal(decoded_matmul(x[1, :7], weight), together[1, :7])
    assert decoded_matmul(x[:, :0], weight).shape == (2, 0, 20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("form", ALL)
def test_rows_are_those_of_the_decoded_matrix(
    monkeypatch: pytest.MonkeyPatch, form: Format, dtype: torch.dtype
) -> None:
    """Of several tiles of columns, the last not full; out of order, one twice, from the first panel and the last."""
    monkeypatch.setattr(embedding_triton, "TILE", 64)
    weight = random_weight(71, whole_steps(96, form), form)
    ids = torch.tensor([70, 0, 33, 70, 15])
    for factor in (1.0, 2.5):
        expected = (weight.dense()[ids] * factor).to(dtype)
        torch.testing.assert_close(embedding(ids, weight, factor, dtype), expected, rtol=1e-6, atol=0)
    assert embedding(ids[:0], weight, 1.0, dtype).shape == (0, weight.columns)


def test_rows_of_a_dense_matrix_keep_its_dtype() -> None:
    matrix = randn(20, 6).half()
    assert torch.equal(embedding(torch.tensor([19, 3]), matrix), matrix[[19, 3]])
