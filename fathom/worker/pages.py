"""provide_pages: have the system provide memory that it has promised, before it is written to."""

from __future__ import annotations

import ctypes
import mmap

_MADV_POPULATE_WRITE = 23  # Linux 5.14; the mmap module has no name for it


def provide_pages(address: int, nbytes: int) -> bool:
    """Do now what the first write to each page of a part of a mapping would do; what is written already stays.

    Returns:
        False if the system cannot.
    """
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    first = address // mmap.PAGESIZE * mmap.PAGESIZE
    size = address + nbytes - first
    return madvise is not None and madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), _MADV_POPULATE_WRITE) == 0
