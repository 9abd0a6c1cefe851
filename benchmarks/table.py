"""Printing of measurements: one row each, with median, least and most."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def print_header(unit: str) -> None:
    print(f"{'':44} {'median':>10} {'min':>10} {'max':>10}  {unit}")


def print_row(name: str, samples: Sequence[float]) -> None:
    print(f"{name:44} {statistics.median(samples):10.3f} {min(samples):10.3f} {max(samples):10.3f}")
