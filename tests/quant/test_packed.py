"""Packed weights: nothing is lost, and the bytes lie where the kernels look for them."""

from __future__ import annotations

import pytest
import torch

from fathom.quant.packed import Factors, PackedWeight, pack
from tests.quant.random_weights import ALL, Format, random_parts, random_weight, whole_steps

NIBBLES = (4, 32, True, False)


@pytest.mark.parametrize("rows", [1, 16, 37])
@pytest.mark.parametrize("columns", [32, 96, 576])
@pytest.mark.parametrize("form", ALL)
def test_dense_is_the_formula(rows: int, columns: int, form: Format) -> None:
    columns = whole_steps(columns, form)
    codes, scales, minimums = random_parts(rows, columns, form)
    packed = pack(codes, scales, minimums, form[0])
    assert torch.equal(packed.dense(), formula(codes, scales, minimums, form))
    assert (packed.rows, packed.columns, packed.format) == (rows, columns, form)


def formula(codes: torch.Tensor, scales: Factors, minimums: Factors | None, form: Format) -> torch.Tensor:
    bits, group, *_ = form
    if minimums is None:
        return (codes.float() - 2 ** (bits - 1)) * each(scales, group)
    return codes.float() * each(scales, group) + each(minimums, group)


def each(factors: Factors, group: int) -> torch.Tensor:
    """Every column's factor."""
    found = factors.values.float().repeat_interleave(group, 1)
    return found if factors.steps is None else found * factors.steps.float().repeat_interleave(256, 1)


@pytest.mark.parametrize("bits", [4, 5, 8])
def test_without_minimums_codes_are_signed(bits: int) -> None:
    zero = 1 << (bits - 1)
    codes = torch.arange(256, dtype=torch.uint8).view(8, 32) & 2 * zero - 1
    packed = pack(codes, Factors(torch.full((8, 1), 0.5).half()), None, bits)
    assert torch.equal(packed.dense().flatten(), torch.arange(-zero, zero).repeat(128 // zero) * 0.5)


def test_rows_of_any_shape_and_order() -> None:
    packed = random_weight(40, 64, NIBBLES)
    row_ids = torch.tensor([[39, 0, 17], [16, 15, 17]])
    assert torch.equal(packed.unpack_rows(row_ids), packed.dense()[row_ids])
    assert packed.unpack_rows(torch.empty(0, dtype=torch.int64)).shape == (0, 64)


def code_at(packed: PackedWeight, row: int, column: int) -> int:
    """By the diagram in the module's docstring."""
    panel, lane = divmod(row, 16)
    lines, byte = packed.quants[panel, :, lane].tolist(), column % 4
    quad = column // 4
    if packed.bits == 8:
        return lines[quad][byte]
    width = packed.bits - 4
    quads = {4: 2, 5: 8, 6: 4}[packed.bits]  # that share a line of high bits, or the one line
    unit, quad = divmod(quad, quads)
    first = unit * (quads // 2 + (width > 0))
    low = lines[first + quad // 2][byte] >> quad % 2 * 4 & 15
    return low | (lines[first + quads // 2][byte] >> quad * width & (1 << width) - 1) << 4 if width else low


@pytest.mark.parametrize("form", ALL)
def test_layout(form: Format) -> None:
    bits, group, with_minimums, with_steps = form
    columns = whole_steps(64, form)
    codes, scales, minimums = random_parts(20, columns, form)
    packed = pack(codes, scales, minimums, bits)
    assert packed.quants.shape == (2, columns * bits // 32, 16, 4)
    assert packed.scales.values.shape == (2, columns // group, 16)
    assert [[code_at(packed, row, column) for column in range(columns)] for row in range(20)] == codes.tolist()
    assert len(packed.tensors) == 1 + (1 + with_minimums) * (1 + with_steps)
    assert packed.scales.values[1, 1, 2] == scales.values[18, 1]
    if minimums is not None:
        assert packed.minimums is not None
        assert packed.minimums.values[1, 1, 2] == minimums.values[18, 1]
    if with_steps:
        assert packed.scales.steps is not None
        assert packed.scales.steps.shape == (2, columns // 256, 16)
    for tensor in packed.tensors:
        assert tensor.is_contiguous()
        assert not tensor[1, :, 4:].any()
    bits_of_factors = 16 / 32 if not with_steps else 8 / group + 16 / 256
    assert packed.nbytes == 32 * columns * (bits + (1 + with_minimums) * bits_of_factors) / 8


def test_with_tensors_takes_them_in_the_order_of_tensors() -> None:
    for form in ALL:
        packed = random_weight(20, 256, form)
        again = packed.with_tensors([tensor.clone() for tensor in packed.tensors], 20)
        assert again.format == packed.format
        assert torch.equal(again.dense(), packed.dense())


@pytest.mark.parametrize(
    ("columns", "groups", "bits", "signed", "message"),
    [
        (48, 3, 8, True, "multiple of 32"),
        (64, 1, 8, True, "must be one of"),
        (64, 3, 8, True, "must be one of"),
        (64, 2, 7, True, "must be one of"),
        (64, 2, 8, False, "must be one of"),
        (64, 4, 4, False, "must be one of"),
    ],
)
def test_what_the_layout_cannot_hold(columns: int, groups: int, bits: int, signed: bool, message: str) -> None:
    factors = Factors(torch.ones(4, groups).half())
    with pytest.raises(ValueError, match=message):
        pack(torch.zeros(4, columns, dtype=torch.uint8), factors, None if signed else factors, bits)
