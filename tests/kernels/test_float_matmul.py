"""Products with matrices of floats, and rows of them: every level against float64, and a row's bits against everything
that must not change them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from fathom.kernels.embedding import embedding
from fathom.kernels.float_matmul import bfloat16_matmul, float_matmul, ref
from fathom.kernels.native import cpu
from fathom.kernels.quant_matmul import decoded_matmul
from fathom.kernels.quant_matmul import ref as quant_ref
from fathom.quant.float_weight import DTYPES, FloatWeight, empty_float_weight, put_rows
from tests.kernels.test_quant_matmul import assert_close, randn
from tests.quant.random_weights import ALL, Format, random_weight, whole_steps

LEVELS = [] if cpu is None else cpu.levels()
Matmul = Callable[..., torch.Tensor]
SHAPES = [(1, 1, 1), (2, 16, 64), (3, 37, 96), (6, 40, 255), (7, 33, 256), (9, 48, 257), (17, 100, 576), (100, 50, 600)]

pytestmark = pytest.mark.skipif(cpu is None, reason="the native kernels are not built")


def make_matrix(rows: int, columns: int, dtype: torch.dtype) -> tuple[torch.Tensor, FloatWeight]:
    """A matrix [rows, columns], and the same in panels."""
    matrix = randn(rows, columns).to(dtype)
    weight = empty_float_weight(rows, columns, dtype)
    put_rows(weight, 0, matrix)
    return matrix, weight


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    before = cpu.level(), cpu.num_threads()
    cpu.use_level(request.param)
    yield request.param
    cpu.use_level(before[0])
    cpu.set_num_threads(before[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("tokens", "rows", "columns"), SHAPES)
def test_product(level: str, dtype: torch.dtype, tokens: int, rows: int, columns: int) -> None:
    (matrix, weight), x, bias = make_matrix(rows, columns, dtype), randn(tokens, columns), randn(rows)
    expected = x.double() @ matrix.double().T
    assert_close(float_matmul(x, weight).double(), expected, 1e-5)
    assert_close(float_matmul(x, weight, bias).double(), expected + bias, 1e-5)
    assert_close(ref.float_matmul(x, weight, bias).double(), expected + bias, 1e-5)


@pytest.mark.parametrize(("tokens", "rows", "columns"), [*SHAPES, (13, 33, 2051)])
def test_product_of_numbers_rounded_to_bfloat16(level: str, tokens: int, rows: int, columns: int) -> None:
    (matrix, weight), x, bias = make_matrix(rows, columns, torch.bfloat16), randn(tokens, columns), randn(rows)
    expected = x.bfloat16().double() @ matrix.double().T
    assert_close(bfloat16_matmul(x, weight).double(), expected, 1e-5)
    assert_close(bfloat16_matmul(x, weight, bias).double(), expected + bias, 1e-5)
    assert_close(ref.bfloat16_matmul(x, weight, bias).double(), expected + bias, 1e-5)


def test_activations_are_rounded_to_bfloat16_as_torch_does(level: str) -> None:
    """Ties, too, and what is not finite; beside a column of zeros, an odd one out."""
    ties = torch.arange(2**15 - 2**7 + 1).bitwise_left_shift(16).add(2**15).int().view(torch.float32)[2**7 :]
    x = torch.cat([ties, -ties, torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 3.4e38])])[:, None]
    (_, weight) = make_matrix(1, 1, torch.bfloat16)
    weight.values[0, 0, 0, 0] = 1.0
    found, expected = bfloat16_matmul(x, weight), x.bfloat16().float()
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(0.5), expected.nan_to_num(0.5))


MATMULS = [*((float_matmul, dtype) for dtype in DTYPES), (bfloat16_matmul, torch.bfloat16)]


@pytest.mark.parametrize("columns", [600, 4099])
@pytest.mark.parametrize(("matmul", "dtype"), MATMULS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_row_is_the_same_whatever_is_beside_it(level: str, matmul: Matmul, dtype: torch.dtype, columns: int) -> None:
    rows = 150 if columns == 600 else 50
    (_, weight), x, bias = make_matrix(rows, columns, dtype), randn(210, columns), randn(rows)
    x[-1, 0] = torch.inf  # not the business of the row before, which ends there
    cpu.set_num_threads(1)
    alone = torch.cat([matmul(row, weight, bias) for row in x.split(1)])
    assert alone[:-1].isfinite().all()
    for num_threads in (1, 2, 3):
        cpu.set_num_threads(num_threads)
        for count in (*range(1, 28), 95, 96, 97, 191, 192, 193, 210) if columns == 600 else (2, 13, 25, 210):
            assert torch.equal(matmul(x[-count:], weight, bias), alone[-count:])
            assert torch.equal(matmul(x[:count], weight, bias), alone[:count])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_number_of_16_bits_is_widened_exactly(level: str, dtype: torch.dtype) -> None:
    """Subnormal numbers too, by way of a product with 1 and of an embedding's lookup; what is not finite stays so."""
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    matrix = numbers.view(-1, 1)
    weight = empty_float_weight(2**16, 1, dtype)
    put_rows(weight, 0, matrix)
    for found in (float_matmul(torch.ones(1, 1), weight)[0], embedding(torch.arange(2**16), weight).flatten()):
        finite = numbers.isfinite()
        assert torch.equal(found[finite], numbers[finite].float())
        assert torch.equal(found.isnan(), numbers.isnan())
        assert torch.equal(found.isinf(), numbers.isinf())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", [1, 39, 40, 64])
def test_rows_by_number(level: str, dtype: torch.dtype, columns: int) -> None:
    matrix, weight = make_matrix(37, columns, dtype)
    ids = torch.tensor([0, 36, 5, 16, 15, 5])
    assert torch.equal(embedding(ids, weight), matrix[ids].float())
    assert torch.equal(embedding(ids, weight, 3.0), matrix[ids].float() * 3.0)
    assert torch.equal(weight.unpack_rows(ids), matrix[ids].float())
    assert torch.equal(weight.dense(), matrix.float())


def test_rows_of_the_output_may_lie_apart(level: str) -> None:
    weights = [make_matrix(rows, 64, torch.bfloat16)[1] for rows in (17, 5)]
    x, output = randn(20, 64), torch.full((20, 30), 7.0)
    for matmul in (float_matmul, bfloat16_matmul):
        for weight, out in zip(weights, output[:, :22].split([17, 5], dim=1), strict=True):
            assert matmul(x, weight, out=out) is out
        assert torch.equal(output[:, :22], torch.cat([matmul(x, weight) for weight in weights], dim=1))
        assert (output[:, 22:] == 7).all()


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize(("tokens", "rows", "columns"), [(1, 1, 32), (3, 37, 96), (17, 100, 576)])
def test_packed_weights_with_activations_as_they_are(
    level: str, form: Format, tokens: int, rows: int, columns: int
) -> None:
    columns = whole_steps(columns, form)
    weight, x, bias = random_weight(rows, columns, form), randn(tokens, columns), randn(rows)
    expected = x.double() @ weight.dense().double().T + bias
    assert_close(decoded_matmul(x, weight, bias).double(), expected, 1e-5)
    assert_close(quant_ref.decoded_matmul(x, weight, bias).double(), expected, 1e-5)
    alone = torch.cat([decoded_matmul(row, weight, bias) for row in x.split(1)])
    assert torch.equal(decoded_matmul(x, weight, bias), alone)


@pytest.mark.parametrize("form", ALL)
def test_rows_of_packed_weights(level: str, form: Format) -> None:
    weight = random_weight(37, whole_steps(96, form), form)
    ids = torch.tensor([36, 0, 17, 0, 15])
    assert torch.equal(embedding(ids, weight), weight.dense()[ids])
    assert torch.equal(embedding(ids, weight, 0.5), weight.dense()[ids] * 0.5)
