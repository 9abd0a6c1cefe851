"""Rounding of weights by the native kernels."""

from __future__ import annotations

import torch

from fathom.kernels.native import cpu
from fathom.kernels.quantise_weights.ref import GROUP
from fathom.quant.ggml_codes import Codes
from fathom.quant.packed import Factors


def quantise_weights(matrix: torch.Tensor, bits: int) -> Codes:
    """See the package's docstring for shapes and rules."""
    matrix = matrix.contiguous()
    rows, columns = matrix.shape
    codes = torch.empty(rows, columns, dtype=torch.uint8)
    scales = torch.empty(rows, columns // GROUP, dtype=torch.float16)
    minimums = torch.empty_like(scales) if bits == 4 else None
    cpu.quantise_weights(
        codes.data_ptr(),
        scales.data_ptr(),
        0 if minimums is None else minimums.data_ptr(),
        matrix.data_ptr(),
        rows,
        columns,
    )
    return Codes(codes, Factors(scales), None if minimums is None else Factors(minimums), bits, GROUP)
