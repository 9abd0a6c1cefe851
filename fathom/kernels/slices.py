"""Working through the rows of a matrix a few at a time, so that temporaries stay small.

A batch's logits take tens of megabytes. On a CPU a temporary of that size is fresh memory, page by page, and
costs several times the arithmetic done in it; one that fits the cache is reused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

_MAX_ENTRIES_CPU = 1 << 20
_MAX_ENTRIES = 1 << 26


def row_slices(shape: Sequence[int], device: torch.device) -> Iterator[slice]:
    """Slices that cover the rows of a [num_rows, row_size] matrix; none for no rows."""
    num_rows, row_size = shape
    max_entries = _MAX_ENTRIES_CPU if device.type == "cpu" else _MAX_ENTRIES
    step = max(1, max_entries // row_size)
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))
