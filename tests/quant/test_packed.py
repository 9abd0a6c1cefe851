"""Packed weights: nothing is lost, and the bytes lie where the kernels look for them."""

from __future__ import annotations

import pytest
import torch

from fathom.quant.packed import PackedWeight, pack


def make_parts(rows: int, columns: int, bits: int, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows + columns + bits + group)
    codes = torch.randint(0, 1 << bits, (rows, columns), generator=generator, dtype=torch.uint8)
    scales = torch.randn(rows, columns // group, generator=generator)
    minimums = torch.randn(rows, columns // group, generator=generator)
    return codes, scales, minimums


@pytest.mark.parametrize("rows", [1, 16, 37])
@pytest.mark.parametrize("columns", [32, 96, 576])
@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("bits", [4, 8])
def test_dense_is_the_formula(rows: int, columns: int, group: int, bits: int) -> None:
    codes, scales, minimums = make_parts(rows, columns, bits, group)
    packed = pack(codes, scales, minimums, bits)
    expected = codes.float() * scales.repeat_interleave(group, 1) + minimums.repeat_interleave(group, 1)
    assert torch.equal(packed.dense(), expected)
    assert (packed.rows, packed.columns, packed.bits, packed.group) == (rows, columns, bits, group)


def test_without_minimums_codes_are_signed() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(8, 32)
    packed = pack(codes, torch.full((8, 1), 0.5), None, bits=8)
    assert torch.equal(packed.dense().flatten(), torch.arange(-128, 128) * 0.5)


def test_rows_of_any_shape_and_order() -> None:
    codes, scales, minimums = make_parts(40, 64, 4, 32)
    packed = pack(codes, scales, minimums, 4)
    row_ids = torch.tensor([[39, 0, 17], [16, 15, 17]])
    assert torch.equal(packed.unpack_rows(row_ids), packed.dense()[row_ids])
    assert packed.unpack_rows(torch.empty(0, dtype=torch.int64)).shape == (0, 64)


def code_at(packed: PackedWeight, row: int, column: int) -> int:
    panel, lane = divmod(row, 16)
    if packed.bits == 8:
        return int(packed.quants[panel, column // 4, lane, column % 4])
    step, place = divmod(column, 8)
    byte = int(packed.quants[panel, step, lane, place % 4])
    return byte >> 4 if place >= 4 else byte & 15


@pytest.mark.parametrize("bits", [4, 8])
def test_layout(bits: int) -> None:
    codes, scales, minimums = make_parts(20, 64, bits, 16)
    packed = pack(codes, scales, minimums, bits)
    assert packed.quants.shape == (2, 64 * bits // 32, 16, 4)
    assert packed.scales.shape == (2, 4, 16)
    assert packed.quants.is_contiguous()
    assert packed.scales.is_contiguous()
    assert [[code_at(packed, row, column) for column in range(64)] for row in range(20)] == codes.tolist()
    assert packed.scales[1, 3, 2] == scales[18, 3]
    assert packed.minimums is not None
    assert packed.minimums[1, 3, 2] == minimums[18, 3]
    for padded in (packed.quants, packed.scales, packed.minimums):
        assert not padded[1, :, 4:].any()


@pytest.mark.parametrize(
    ("columns", "groups", "bits", "signed", "message"),
    [
        (48, 3, 8, False, "multiple of 32"),
        (64, 1, 8, False, "groups have"),
        (64, 3, 8, False, "groups have"),
        (64, 2, 5, False, "only 4 and 8"),
        (64, 2, 4, True, "unsigned"),
    ],
)
def test_what_the_layout_cannot_hold(columns: int, groups: int, bits: int, signed: bool, message: str) -> None:
    factors = torch.ones(4, groups)
    with pytest.raises(ValueError, match=message):
        pack(torch.zeros(4, columns, dtype=torch.uint8), factors, None if signed else factors, bits)
