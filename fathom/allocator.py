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

import msgspec

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


_SHORT_LIVED_KEYS = tuple(
    msgspec.json.encode({f"{number:08x}": 0 for number in range(first, first + 64)}) for first in range(0, 4096, 64)
)
"""Documents whose keys fall on every place of msgspec's cache."""


def release_decoded_keys() -> None:
    """Have msgspec remember other keys than those of what it has decoded lately.

    It keeps 512 keys of JSON objects for the next time, each until another takes its place. Those of a large body lie
    scattered over all the memory that the body had, and Python gives memory back by the megabyte only: after a body of
    17 MB a process stays 130 MB larger. The keys that come instead lie side by side.
    """
    for document in _SHORT_LIVED_KEYS:
        msgspec.json.decode(document)


class HeapTrimmer:
    """Gives the holes in the heaps back now and then; those in C's only with glibc."""

    def __init__(self, interval_s: float = 10.0) -> None:
        self._interval_s = interval_s
        self._due = time.monotonic() + interval_s
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None

    def tick(self) -> None:
        """Trim, if that was not done for `interval_s`: some milliseconds."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + self._interval_s
        release_decoded_keys()
        if self._trim is not None:
            self._trim(0)
