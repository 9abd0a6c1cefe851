"""Pages of this process's memory: huge ones, ones that the system is to provide now, ones that it may have back."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

HUGE_PAGE = 1 << 21  # bytes, on x86 and on Arm with small pages of 4 KiB
_MADV_POPULATE_WRITE = 23  # Linux 5.14; the mmap module has no name for it


def map_huge_pages(nbytes: int) -> np.ndarray | None:
    """Zeroed memory of its own, uint8 [at least nbytes], from the start of a huge page on.

    The system is only asked for huge pages: Linux gives them where /sys/kernel/mm/transparent_hugepage/enabled says
    madvise or always. A page takes no memory before it is first touched.

    Returns:
        None on a system without such pages, or if it has no room for the mapping.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        mapping = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        mapping.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel without them, or a limit on mappings
        return None
    memory = np.frombuffer(mapping, np.uint8)  # keeps the mapping
    return memory[-memory.ctypes.data % HUGE_PAGE :]


def provide_pages(address: int, nbytes: int) -> bool:
    """Do now what the first write to each page of a part of a mapping would do; what is written already stays.

    Returns:
        False if the system cannot.
    """
    first = address // mmap.PAGESIZE * mmap.PAGESIZE
    return _madvise(first, address + nbytes, _MADV_POPULATE_WRITE)


def drop_pages(address: int, nbytes: int) -> None:
    """Forget the pages that lie wholly within a part of a mapped file that nothing has written to.

    They would be read again if they were needed; until then they are not counted as this process's memory. Where the
    system cannot do it, nothing happens.
    """
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < end:
        _madvise(first, end, mmap.MADV_DONTNEED)


def _madvise(first: int, end: int, advice: int) -> bool:
    """For mappings that are not this process's own `mmap` objects, which have a method for it."""
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    return madvise is not None and madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), advice) == 0
