"""Products with packed weights: the ref kernel against float64, the native levels against the ref kernel, and a row's
bits against everything that must not change them."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import pytest
import torch

from fathom.kernels.native import cpu
from fathom.kernels.quant_matmul import quant_matmul, ref
from fathom.quant.packed import Factors, PackedWeight, pack
from tests.quant.random_weights import ALL, Format, random_weight, whole_steps

NIBBLES, BYTES = (4, 32, True, False), (8, 32, False, False)
LEVELS = [] if cpu is None else cpu.levels()
needs_native = pytest.mark.skipif(cpu is None, reason="the native kernels are not built")


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    before = cpu.level()
    cpu.use_level(request.param)
    yield request.param
    cpu.use_level(before)


@pytest.fixture
def threads() -> Iterator[None]:
    before = cpu.num_threads()
    yield
    cpu.set_num_threads(before)


def assert_close(result: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Close relative to the sums' size: where large terms cancel, no more can be asked for."""
    size = expected.abs().mean().item() + 1e-30
    torch.testing.assert_close(result, expected, atol=tolerance * size, rtol=tolerance)


def exact(x: torch.Tensor, weight: PackedWeight) -> torch.Tensor:
    """The product in float64, with activations rounded as the package's docstring says."""
    groups = x.view(len(x), -1, weight.group)
    largest = groups.abs().amax(-1, keepdim=True).clamp(min=2**-118)
    rounded = (groups * (127 / largest)).round().double() * (largest / 127).double()
    return rounded.flatten(1) @ weight.dense().double().T


@pytest.mark.parametrize("form", ALL)
def test_ref_is_the_formula(form: Format) -> None:
    columns = whole_steps(96, form)
    weight, x = random_weight(37, columns, form), randn(5, columns)
    assert_close(ref.quant_matmul(x, weight).double(), exact(x, weight), 1e-6)


def test_rounding_costs_little() -> None:
    weight, x = random_weight(64, 576, BYTES), randn(9, 576)
    difference = ref.quant_matmul(x, weight) - x @ weight.dense().T
    assert difference.norm() < 0.01 * (x @ weight.dense().T).norm()


@needs_native
@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize(
    ("tokens", "rows", "columns"),
    [(1, 1, 32), (2, 16, 64), (3, 37, 96), (15, 100, 576), (70, 50, 1536), (1, 33, 4864), (13, 8, 4864)],
)
def test_native_is_ref(level: str, tokens: int, rows: int, columns: int, form: Format) -> None:
    columns = whole_steps(columns, form)
    weight, x, bias = random_weight(rows, columns, form), randn(tokens, columns), randn(rows)
    assert_close(quant_matmul(x, weight, bias), ref.quant_matmul(x, weight, bias), 1e-5)


@needs_native
def test_levels() -> None:
    """The last one runs on every processor of the kind; one that this processor lacks is refused."""
    assert cpu.levels()[-1] == ("neon" if platform.machine().lower() in ("aarch64", "arm64") else "portable")
    assert cpu.level() == cpu.levels()[0]
    with pytest.raises(ValueError, match="no level avx9 on this processor"):
        cpu.use_level("avx9")


@needs_native
@pytest.mark.parametrize("form", ALL)
def test_levels_agree(form: Format) -> None:
    columns = whole_steps(576, form)
    weight, x = random_weight(48, columns, form), randn(7, columns)
    results, before = [], cpu.level()
    for name in LEVELS:
        cpu.use_level(name)
        results.append(quant_matmul(x, weight))
    cpu.use_level(before)
    for result in results[1:]:
        assert_close(result, results[0], 1e-6)


@needs_native
@pytest.mark.parametrize("form", ALL)
def test_largest_integers(level: str, form: Format) -> None:
    """Every product at its extreme, of either sign: no sum on the way may overflow."""
    bits, group, with_minimums, with_steps = form
    columns = whole_steps(64, form)
    one = torch.ones(3, columns // group)
    factors = Factors(one.to(torch.int8), torch.ones(3, columns // 256).half()) if with_steps else Factors(one.half())
    nothing = Factors(factors.values * 0, factors.steps)
    codes = torch.stack([torch.full((columns,), code) for code in (0, 1, (1 << bits) - 1)]).to(torch.uint8)
    weight = pack(codes, factors, nothing if with_minimums else None, bits)
    signs = torch.tensor([1.0, -1.0]).repeat(columns // 2)
    x = torch.stack([torch.ones(columns), -torch.ones(columns), signs, -signs]) * 127
    assert torch.equal(quant_matmul(x, weight), x @ weight.dense().T)
    many = x.repeat(5, 1)
    assert torch.equal(quant_matmul(many, weight), many @ weight.dense().T)


@needs_native
@pytest.mark.parametrize("form", ALL)
def test_a_row_is_the_same_whatever_is_beside_it(level: str, threads: None, form: Format) -> None:
    columns = whole_steps(288, form)
    weight, x = random_weight(150, columns, form), randn(150, columns)
    cpu.set_num_threads(1)
    alone = torch.cat([quant_matmul(row, weight) for row in x.split(1)])
    for num_threads in (1, 2, 3):
        cpu.set_num_threads(num_threads)
        for count in (*range(1, 18), 63, 64, 65, 70, 150):
            assert torch.equal(quant_matmul(x[-count:], weight), alone[-count:])


@needs_native
def test_rows_of_the_output_may_lie_apart(level: str) -> None:
    weights = [random_weight(rows, 64, BYTES) for rows in (17, 5)]
    x, output = randn(6, 64), torch.full((6, 30), 7.0)
    for weight, out in zip(weights, output[:, :22].split([17, 5], dim=1), strict=True):
        assert quant_matmul(x, weight, out=out) is out
    assert torch.equal(output[:, :22], torch.cat([quant_matmul(x, weight) for weight in weights], dim=1))
    assert (output[:, 22:] == 7).all()


@needs_native
def test_leading_dimensions(level: str) -> None:
    weight, x = random_weight(20, 64, NIBBLES), randn(2, 3, 64)
    assert torch.equal(quant_matmul(x, weight), quant_matmul(x.view(6, 64), weight).view(2, 3, 20))
    assert torch.equal(quant_matmul(x[1, 2], weight), quant_matmul(x, weight)[1, 2])
    assert quant_matmul(x[:, :0], weight).shape == (2, 0, 20)


@needs_native
@pytest.mark.parametrize(("value", "factor"), [(0.0, 1.0), (1e-40, 6e4), (2.6e-43, 6e4), (2e-45, 6e4), (3e38, 6e-8)])
def test_extreme_activations(level: str, value: float, factor: float) -> None:
    """Zeros, steps that are subnormal or round to zero, and the largest; the weights bring the product to size."""
    codes = torch.arange(16 * 64).remainder(16).to(torch.uint8).view(16, 64)
    factors = torch.full((16, 2), factor).half()
    weight = pack(codes, Factors(factors), Factors(-factors), bits=4)
    x = torch.full((2, 64), value)
    x[1, ::3] = -value
    size = 1 / (value * factor) if value > 0 else 1.0
    assert_close(quant_matmul(x, weight).double() * size, ref.quant_matmul(x, weight).double() * size, 1e-5)


@needs_native
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nothing_hides_what_is_not_finite(level: str, value: float) -> None:
    weight, x = random_weight(16, 64, NIBBLES), randn(2, 64)
    x[0, 3] = value
    result = quant_matmul(x, weight)
    assert not result[0].isfinite().any()
    assert torch.equal(result[1:], quant_matmul(x[1:], weight))
