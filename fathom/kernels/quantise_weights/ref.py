"""Rounding of weights in plain torch."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fathom.quant.ggml_codes import Codes
from fathom.quant.packed import Factors, signed_zero

GROUP = 32
CUTS = (0.0, 0.05)
"""Shares of a group's range that are cut off at both ends to start from."""
TURNS = 2
LARGEST = {4: 15, 8: 127}


def quantise_weights(matrix: torch.Tensor, bits: int) -> Codes:
    """See the package's docstring for shapes and rules."""
    groups = matrix.unflatten(1, (-1, GROUP))
    if bits == 8:
        scales = _scales_of_8_bits(groups.abs().amax(-1, keepdim=True))
        codes = torch.where(scales == 0, 0.0, groups / scales).round() + signed_zero(8)
        return Codes(codes.flatten(1).to(torch.uint8), _stored(scales), None, bits, GROUP)
    best = _fit_4_bits(groups)
    return Codes(best.codes.flatten(1).to(torch.uint8), _stored(best.scales), _stored(best.minimums), bits, GROUP)


def _stored(factors: torch.Tensor) -> Factors:
    """Numbers [rows, groups, 1] that float16 holds."""
    return Factors(factors.squeeze(-1).half())


def _scales_of_8_bits(largest: torch.Tensor) -> torch.Tensor:
    """float32 that float16 holds: next to largest / 127, or above where a code would come out beyond 127."""
    scales = (largest / LARGEST[8]).half()
    above = (scales.view(torch.int16) + 1).view(torch.float16)
    return torch.where(scales.float() * 127.5 < largest, above, scales).float()


class _Fit(NamedTuple):
    """scales * codes + minimums; errors are sums of squares, [rows, groups, 1] like the factors."""

    scales: torch.Tensor
    minimums: torch.Tensor
    codes: torch.Tensor
    errors: torch.Tensor


def _fit_4_bits(groups: torch.Tensor) -> _Fit:
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    best: _Fit | None = None
    for cut in CUTS:
        margin = cut * (high - low)
        fit = _rounded(groups, (high - low - 2 * margin) / LARGEST[4], low + margin)
        best = fit if best is None else _better(best, fit)
        for _ in range(TURNS):
            fit = _rounded(groups, *_least_squares(groups, fit))
            best = _better(best, fit)
    assert best is not None
    return best


def _rounded(groups: torch.Tensor, scales: torch.Tensor, minimums: torch.Tensor) -> _Fit:
    """The codes for these factors, rounded to float16."""
    scales, minimums = scales.half().float(), minimums.half().float()
    steps = torch.where(scales > 0, (groups - minimums) / scales, 0.0)
    codes = steps.round().clamp(0, LARGEST[4])
    errors = (groups - (scales * codes + minimums)).square().sum(-1, keepdim=True)
    return _Fit(scales, minimums, codes, errors)


def _least_squares(groups: torch.Tensor, fit: _Fit) -> tuple[torch.Tensor, torch.Tensor]:
    """The factors for these codes; as they were where the codes of a group are all the same."""
    sums, totals = fit.codes.sum(-1, keepdim=True), groups.sum(-1, keepdim=True)
    determinant = GROUP * fit.codes.square().sum(-1, keepdim=True) - sums.square()
    scales = (GROUP * (fit.codes * groups).sum(-1, keepdim=True) - sums * totals) / determinant
    minimums = (totals - scales * sums) / GROUP
    usable = (determinant > 0) & (scales > 0)
    return torch.where(usable, scales, fit.scales), torch.where(usable, minimums, fit.minimums)


def _better(one: _Fit, other: _Fit) -> _Fit:
    """For each group the one with the smaller error."""
    return _Fit(*(torch.where(other.errors < one.errors, b, a) for a, b in zip(one, other, strict=True)))
