"""Which part of a model a rank holds: heads, columns and rows, dealt out as evenly as whole units allow.

Attention is cut between KV heads, since a query head reads the cache of its own KV head only:

    9 query heads, 3 KV heads, 2 ranks      rank 0: queries 0-2, KV 0       rank 1: queries 3-8, KV 1 and 2
    8 query heads, 2 KV heads, 4 ranks      rank 0: queries 0, 1, KV 0      rank 1: queries 2, 3, KV 0 again      ...

With more ranks than KV heads several ranks hold copies of a KV head, and each its own query heads.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cut:
    """A rank's part, from start to stop, of something that is `whole` long."""

    whole: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def slice(self) -> slice:
        return slice(self.start, self.stop)

    @property
    def is_whole(self) -> bool:
        return self.size == self.whole

    def times(self, factor: int) -> Cut:
        """The same part of something each of whose units is `factor` long."""
        return Cut(self.whole * factor, self.start * factor, self.stop * factor)


def uncut(whole: int) -> Cut:
    """All of it."""
    return Cut(whole, 0, whole)


def even_cut(whole: int, rank: int, size: int, unit: int = 1) -> Cut:
    """The rank's part of `whole`, cut at multiples of `unit`; parts differ by no more than a unit."""
    units = -(-whole // unit)
    start, stop = rank * units // size, (rank + 1) * units // size
    return Cut(whole, min(whole, start * unit), min(whole, stop * unit))


@dataclass(frozen=True, slots=True)
class HeadShare:
    """The query heads of a rank, and the KV heads that they read."""

    query: Cut
    kv: Cut


def head_share(num_heads: int, num_kv_heads: int, rank: int, size: int) -> HeadShare:
    """The heads of a rank; only for sizes that `obstacle_to_heads` has nothing against."""
    queries_per_kv = num_heads // num_kv_heads
    if num_kv_heads >= size:
        kv = even_cut(num_kv_heads, rank, size)
        return HeadShare(kv.times(queries_per_kv), kv)
    kv_head = rank * num_kv_heads // size
    return HeadShare(even_cut(num_heads, rank, size), Cut(num_kv_heads, kv_head, kv_head + 1))


def obstacle_to_heads(num_heads: int, num_kv_heads: int, size: int) -> str | None:
    """Why a model's heads cannot be dealt out to `size` ranks; None if they can."""
    if num_kv_heads >= size:
        return None
    if size % num_kv_heads:
        return f"{num_kv_heads} KV heads can be copied to a multiple of {num_kv_heads} ranks only"
    queries_per_kv, copies = num_heads // num_kv_heads, size // num_kv_heads
    if queries_per_kv % copies:
        return f"the {queries_per_kv} query heads of each KV head cannot be dealt out to {copies} ranks"
    return None


def sizes_of_heads(num_heads: int, num_kv_heads: int) -> list[int]:
    """Every number of ranks that a model's heads can be dealt out to."""
    return [size for size in range(1, num_heads + 1) if obstacle_to_heads(num_heads, num_kv_heads, size) is None]
