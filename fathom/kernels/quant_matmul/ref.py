"""Products with packed weights in plain torch.

The integer sums are computed in float32, which holds them exactly: 32 products of at most 255 * 127 stay below 2^24.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fathom.quant.packed import PackedWeight, factors_of_rows

ACTIVATION_MAX = 127

SMALLEST_LARGEST = 2.0**-118
"""A group's largest magnitude counts as at least this, so that neither a step nor its inverse leaves float32."""


def quant_matmul(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    activations, steps = _quantize(x.reshape(-1, weight.columns // weight.group, weight.group))
    sums = activations.sum(dim=-1)
    rows = torch.arange(weight.rows, device=x.device)
    integers = weight.integers(rows)
    scales = factors_of_rows(weight.scales, rows).T
    minimums = None if weight.minimums is None else factors_of_rows(weight.minimums, rows).T
    total = torch.zeros(len(activations), weight.rows, device=x.device)
    for group in range(weight.columns // weight.group):
        product = scales[group] * (activations[:, group] @ integers[:, group].T)
        if minimums is not None:
            product += minimums[group] * sums[:, group, None]
        total += steps[:, group] * product
    if bias is not None:
        total += bias
    total = total.view(*x.shape[:-1], weight.rows)
    return total if out is None else out.copy_(total)


def decoded_matmul(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    product = F.linear(x, weight.dense(), bias)
    return product if out is None else out.copy_(product)


def _quantize(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers [tokens, groups, group] in -127..127, and the steps [tokens, groups, 1] that they count."""
    largest = groups.abs().amax(dim=-1, keepdim=True).clamp(min=SMALLEST_LARGEST)
    return (groups * (ACTIVATION_MAX / largest)).round(), largest / ACTIVATION_MAX
