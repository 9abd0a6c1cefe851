"""The heaps of a process that serves, C's and Python's.

C's: what is freed is kept from one step to the next, and given back to the system now and then. Python's: cycles are
looked for in what is new only.

Bodies, answers and batches of all sizes are allocated and freed beside what stays, so that the heap is full of holes
after a while. glibc keeps every page of them: a process is then as large as all that it ever held at once, and creeps
up with the odd coincidence. A limit beyond which blocks are mapped apart would prevent it too, but in the engine it
would have the tensors of every step mapped anew, which takes as long as the model.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import time

LARGEST_KEPT_BYTES = 2**30
"""Of freed memory."""
YOUNG_OBJECTS = 50_000
"""More than a step makes, at 4,096 requests."""


def keep_freed_memory() -> None:
    """Have glibc's malloc keep what is freed for who asks next, instead of giving it back to the system.

    A prefill's intermediate tensors take megabytes each. Fresh from the system every time, they are mapped and zeroed
    page by page, which costs more than the norms and activations that are computed in them.
    """
    trim_threshold, mmap_threshold, arena_max = -1, -3, -8  # mallopt's numbers for its parameters
    with contextlib.suppress(AttributeError):  # another libc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(arena_max, 1)  # arenas of other threads are given back whatever the threshold
        mallopt(mmap_threshold, LARGEST_KEPT_BYTES)
        mallopt(trim_threshold, LARGEST_KEPT_BYTES)


def spare_what_the_start_made() -> None:
    """Have Python's collector of cycles never look through what there is now, which stays; when all is up."""
    gc.freeze()


def calm_garbage_collector() -> None:
    """Have Python's collector of cycles look at what is new only, and not after every 700 objects; when all is up.

    A step of thousands of requests makes several objects for each, which all are there until its outputs are sent, and
    holds no cycles: to look through them a dozen times in a step, and through all that the boot has made now and then,
    would cost a tenth of the scheduler's time, and 100 ms.
    """
    gc.collect()
    spare_what_the_start_made()
    gc.set_threshold(YOUNG_OBJECTS)


class HeapTrimmer:
    """Gives the holes in the heap back now and then. Without effect where the C library is another."""

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
