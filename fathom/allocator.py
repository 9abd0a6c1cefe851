"""HeapTrimmer: gives the holes in the C heap back to the system now and then.

Bodies, answers and batches of all sizes are allocated and freed beside what stays, so that the heap is full of holes
after a while. glibc keeps every page of them: a process is then as large as all that it ever held at once, and creeps
up with the odd coincidence. A limit beyond which blocks are mapped apart would prevent it too, but in the engine it
would have the tensors of every step mapped anew, which takes as long as the model.
"""

from __future__ import annotations

import ctypes
import sys
import time


class HeapTrimmer:
    """Without effect where the C library is another."""

    def __init__(self, interval_s: float = 10.0) -> None:
        self._interval_s = interval_s
        self._due = time.monotonic() + interval_s
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None

    def tick(self) -> None:
        """Trim, if that was not done for `interval_s`: some milliseconds."""
        now = time.monotonic()
        if now >= self._due and self._trim is not None:
            self._trim(0)
            self._due = now + self._interval_s
