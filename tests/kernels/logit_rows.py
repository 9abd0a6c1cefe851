"""Rows of logits of all the kinds that choosing a token has to do with."""

from __future__ import annotations

import torch

INF = float("inf")
KINDS = ["normal", "flat", "levels", "equal", "masked", "mostly masked", "signed zeros"]


def make_row(kind: str, size: int, seed: int) -> torch.Tensor:
    """Logits with at least one that is finite."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.randn(size, generator=generator) * (0.05 if kind == "flat" else 4.0)
    match kind:
        case "levels":
            row = row.round() / 4
        case "equal":
            row[:] = -1.5
        case "signed zeros":
            row = row.sign() * 0.0
    if kind in ("masked", "mostly masked"):
        masked = torch.rand(size, generator=generator) < (0.5 if kind == "masked" else 0.99)
        masked[seed % size] = False
        row[masked] = -INF
    return row
