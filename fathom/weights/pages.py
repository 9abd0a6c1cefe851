"""drop_pages: hand memory that mirrors a file back to the system, once its content has been copied."""

from __future__ import annotations

import ctypes
import mmap


def drop_pages(address: int, nbytes: int) -> None:
    """Forget the pages that lie wholly within a part of a mapped file that nothing has written to.

    They would be read again if they were needed; until then they are not counted as this process's memory. Where the
    system cannot do it, nothing happens.
    """
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if madvise is not None and first < end:
        madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_DONTNEED)
