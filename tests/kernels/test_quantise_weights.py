"""Weights rounded to integers: what they decode to, against rounding's bounds, and every level against ref."""

from __future__ import annotations

import pytest
import torch

from fathom.kernels.native import cpu
from fathom.kernels.quantise_weights import quantise_weights, ref
from fathom.quant.ggml_codes import Codes

LEVELS = [] if cpu is None else cpu.levels()
MATRIX = torch.randn(70, 96, generator=torch.Generator().manual_seed(0))


def decoded(codes: Codes) -> torch.Tensor:
    groups = codes.codes.float().unflatten(1, (-1, codes.group))
    if codes.minimums is None:
        return ((groups - 128) * codes.scales.widened()[..., None]).flatten(1)
    return (groups * codes.scales.widened()[..., None] + codes.minimums.widened()[..., None]).flatten(1)


def error(codes: Codes) -> float:
    return float((decoded(codes) - MATRIX).norm() / MATRIX.norm())


def test_8_bits_miss_by_half_a_step() -> None:
    for found in (quantise_weights(MATRIX, 8), ref.quantise_weights(MATRIX, 8)):
        assert torch.equal(found.scales.values, (MATRIX.unflatten(1, (-1, 32)).abs().amax(-1) / 127).half())
        missed = (decoded(found) - MATRIX).unflatten(1, (-1, 32)).abs().amax(-1)
        assert (missed <= found.scales.widened() * 0.5001).all()


@pytest.mark.parametrize("size", [3e-7, 1e-6, 1e-5, 6e-3])
def test_scales_too_small_for_float16_to_round_well_lose_no_large_number(size: float) -> None:
    for found in (quantise_weights(MATRIX * size, 8), ref.quantise_weights(MATRIX * size, 8)):
        assert found.codes.min() >= 1
        missed = (decoded(found) - MATRIX * size).unflatten(1, (-1, 32)).abs().amax(-1)
        assert (missed <= found.scales.widened() * 0.501).all()


def test_4_bits_are_better_than_rounding_to_the_range() -> None:
    groups = MATRIX.unflatten(1, (-1, 32))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    step = (high - low) / 15
    plain = float((((groups - low) / step).round() * step + low - groups).norm() / MATRIX.norm())
    for found in (quantise_weights(MATRIX, 4), ref.quantise_weights(MATRIX, 4)):
        assert int(found.codes.max()) == 15
        assert error(found) < 0.95 * plain


@pytest.mark.parametrize("bits", [4, 8])
def test_what_codes_can_hold_is_held(bits: int) -> None:
    """Groups of equal numbers, zeros among them, and groups whose numbers are steps of one size."""
    equal = torch.tensor([0.0, 0.75, -3.0]).repeat_interleave(32).expand(2, -1)
    stepped = (torch.arange(96) % 16 - 5.0).expand(2, -1) * 0.125
    for quantise in (quantise_weights, ref.quantise_weights):
        torch.testing.assert_close(decoded(quantise(equal, bits)), equal, rtol=2**-12 if bits == 8 else 0, atol=0)
        if bits == 4:
            torch.testing.assert_close(decoded(quantise(stepped, bits)), stepped, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(cpu is None, reason="the native kernels are not built")
@pytest.mark.parametrize("bits", [4, 8])
def test_levels_agree_with_ref(bits: int) -> None:
    expected, before = ref.quantise_weights(MATRIX, bits), cpu.level()
    for name in LEVELS:
        cpu.use_level(name)
        found = quantise_weights(MATRIX, bits)
        assert error(found) == pytest.approx(error(expected), rel=0.01)
        assert (found.codes == expected.codes).float().mean() > 0.97
    cpu.use_level(before)
