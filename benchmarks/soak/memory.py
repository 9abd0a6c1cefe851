"""Memory against requests: the slope of a straight line, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

GROUPS = 20
REST_S = 12.0
"""Of a server before it is sampled: longer than from one trimming of its heap to the next (fathom/allocator.py)."""
_T_95 = 2.101
"""Student's t at 97.5 % for the GROUPS - 2 degrees of freedom that a line through GROUPS points leaves."""


@dataclass(frozen=True)
class Slope:
    """Bytes a request, and half the width of the interval that has it with 95 %."""

    bytes_per_request: float
    uncertainty: float

    def __str__(self) -> str:
        return f"{self.bytes_per_request:+.1f} ± {self.uncertainty:.1f} B a request"


def fit(requests: Sequence[int], nbytes: Sequence[int]) -> Slope:
    """The least-squares slope of memory over requests.

    Neighbouring samples are alike, so they say less than as many independent ones would: the line goes through the
    means of GROUPS groups of neighbours, and it is from their distances to it that the uncertainty comes. Of GROUPS
    samples that lie far apart each is a group.

    Args:
        requests, nbytes: [samples], at least GROUPS.
    """
    x = np.array([part.mean() for part in np.array_split(np.asarray(requests, np.float64), GROUPS)])
    y = np.array([part.mean() for part in np.array_split(np.asarray(nbytes, np.float64), GROUPS)])
    dx, dy = x - x.mean(), y - y.mean()
    slope = float(dx @ dy / (dx @ dx))
    residual = dy - slope * dx
    error = math.sqrt(float(residual @ residual) / (GROUPS - 2) / float(dx @ dx))
    return Slope(slope, _T_95 * error)
