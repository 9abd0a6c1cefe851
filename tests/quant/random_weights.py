"""Random packed weights in every format."""

from __future__ import annotations

import torch

from fathom.quant.packed import FORMATS, STEP_COLUMNS, Factors, PackedWeight, pack

Format = tuple[int, int, bool, bool]
"""bits, group, whether there are minimums, whether scales have steps: a key of FORMATS."""

ALL = list(FORMATS)


def whole_steps(columns: int, form: Format) -> int:
    """As many columns as the format can have, or more."""
    return -(-columns // STEP_COLUMNS) * STEP_COLUMNS if form[3] else columns


def random_factors(generator: torch.Generator, rows: int, columns: int, form: Format, size: float = 1.0) -> Factors:
    _, group, _, steps = form
    if not steps:
        return Factors((torch.randn(rows, columns // group, generator=generator) * size).half())
    multiples = torch.randint(-64, 64, (rows, columns // group), generator=generator, dtype=torch.int8)
    return Factors(multiples, (torch.randn(rows, columns // STEP_COLUMNS, generator=generator) * size / 32).half())


def random_parts(rows: int, columns: int, form: Format) -> tuple[torch.Tensor, Factors, Factors | None]:
    """Codes, scales and minimums; the minimums are ten times as large."""
    generator = torch.Generator().manual_seed(rows * 7 + columns)
    codes = torch.randint(0, 1 << form[0], (rows, columns), generator=generator, dtype=torch.uint8)
    scales = random_factors(generator, rows, columns, form)
    return codes, scales, random_factors(generator, rows, columns, form, 10.0) if form[2] else None


def random_weight(rows: int, columns: int, form: Format) -> PackedWeight:
    codes, scales, minimums = random_parts(rows, columns, form)
    return pack(codes, scales, minimums, form[0])
