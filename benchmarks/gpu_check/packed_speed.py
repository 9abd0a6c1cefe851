"""How long products with packed weights take, beside torch's with the same matrix in 16 bits: does packing pay?"""

from __future__ import annotations

from itertools import cycle

import torch

from benchmarks.gpu_check.ceilings import seconds_of
from benchmarks.gpu_check.comparing import Inputs
from benchmarks.gpu_check.packed import random_weight
from benchmarks.gpu_check.rows import Report, attempt
from fathom.kernels.quant_matmul import quant_matmul
from fathom.quant.packed import FORMATS, PackedWeight

TIMED = ("Q4_K", "Q6_K", "Q8_0")


def run(
    report: Report, *, device: str, dtype: str, rows: int, columns: int, copies: int, tokens: list[int], seed: int
) -> None:
    """`copies`: matrices that take turns, more in all than the caches hold, as a model's layers do."""
    inputs = Inputs(seed, device)
    for form, name in FORMATS.items():
        if name in TIMED:
            with attempt(report, name):
                weight = random_weight(inputs, rows, columns, form)
                compare(report, name, weight, copies, inputs, getattr(torch, dtype), tokens)


def compare(
    report: Report,
    name: str,
    weight: PackedWeight,
    copies: int,
    inputs: Inputs,
    dtype: torch.dtype,
    tokens: list[int],
) -> None:
    """For each number of tokens, how many times as long torch takes."""
    device = inputs.device.type
    packed = cycle([weight.with_tensors([part.clone() for part in weight.tensors], weight.rows) for _ in range(copies)])
    dense = cycle([weight.dense().to(dtype) for _ in range(copies)])
    for count in tokens:
        x = inputs.normal(count, weight.columns, dtype=dtype)
        ours = seconds_of(lambda x=x: quant_matmul(x, next(packed)), device)
        theirs = seconds_of(lambda x=x: x @ next(dense).T, device)
        note = f"{1e6 * ours:.0f} us, {weight.nbytes / ours / 1e9:.0f} GB/s of packed weights"
        report(f"{name} over 16 bits, {count} tokens", theirs / ours, "x", note=note)
