"""Packed and fp8 weights in Triton: products, and embedding rows, beside the decoded matrix in float32."""

from __future__ import annotations

import torch

from benchmarks.gpu_check.comparing import TOLERANCE, Inputs, Worst, poisoned, widens_e4m3
from benchmarks.gpu_check.rows import Report, attempt
from fathom.kernels.embedding import triton as embedding
from fathom.kernels.fp8_matmul import ref as fp8_ref
from fathom.kernels.fp8_matmul import triton as fp8
from fathom.kernels.quant_matmul import triton as quant_matmul
from fathom.quant.packed import FORMATS, STEP_COLUMNS, Factors, PackedWeight, pack


def run(report: Report, *, device: str, dtypes: list[str], rows: int, tokens: list[int], seed: int) -> None:
    """`rows`: of the matrices; columns are those of three steps of scales."""
    inputs = Inputs(seed, device)
    weights = [random_weight(inputs, rows, 3 * STEP_COLUMNS, form) for form in FORMATS]
    for dtype in dtypes:
        number, note = getattr(torch, dtype), f"{len(weights)} formats"
        for what, find in (("products", products), ("embedding rows", lookups)):
            with attempt(report, f"{what}, {dtype}"):
                worst = find(inputs, weights, number, tokens)
                report(f"{what}, {dtype}", worst.error, "error", most=TOLERANCE[number], must=True, note=note)
        if not widens_e4m3(device):
            continue
        with attempt(report, f"fp8 products, {dtype}"):
            worst = fp8_products(inputs, rows, number, tokens)
            report(f"fp8 products, {dtype}", worst.error, "error", most=TOLERANCE[number], must=True)


def products(inputs: Inputs, weights: list[PackedWeight], dtype: torch.dtype, tokens: list[int]) -> Worst:
    """With these numbers of tokens."""
    worst = Worst()
    for weight in weights:
        decoded = weight.dense()
        for count in tokens:
            x = inputs.normal(count, weight.columns, dtype=dtype)
            with poisoned():
                found = quant_matmul.quant_matmul(x, weight)
            worst.add(found, x.float() @ decoded.T)
    return worst


def fp8_products(inputs: Inputs, rows: int, dtype: torch.dtype, tokens: list[int]) -> Worst:
    """With these numbers of tokens, and a number of columns that is no whole tile."""
    worst = Worst()
    weight = (30 * inputs.normal(rows, 2 * STEP_COLUMNS + 24)).to(torch.float8_e4m3fn)
    scales = inputs.normal(rows).abs() / 30
    for count in tokens:
        x = inputs.normal(count, weight.shape[1], dtype=dtype)
        with poisoned():
            found = fp8.fp8_matmul(x, weight, scales)
        worst.add(found, fp8_ref.fp8_matmul(x.float(), weight, scales))
    return worst


def lookups(inputs: Inputs, weights: list[PackedWeight], dtype: torch.dtype, tokens: list[int]) -> Worst:
    """Of as many rows, times a factor."""
    worst = Worst()
    for weight in weights:
        for count in tokens:
            ids = inputs.integers(weight.rows, count)
            with poisoned():
                found = embedding.embedding(ids, weight, 2.5, dtype)
            worst.add(found, weight.unpack_rows(ids) * 2.5)
    return worst


def random_weight(inputs: Inputs, rows: int, columns: int, form: tuple[int, int, bool, bool]) -> PackedWeight:
    bits, group, minimums, steps = form

    def factors() -> Factors:
        if not steps:
            return Factors(inputs.normal(rows, columns // group).half())
        multiples = inputs.integers(64, rows, columns // group, low=-64).to(torch.int8)
        return Factors(multiples, (inputs.normal(rows, columns // STEP_COLUMNS) / 32).half())

    codes = inputs.integers(1 << bits, rows, columns).to(torch.uint8)
    return pack(codes, factors(), factors() if minimums else None, bits)
