"""Which graph serves a step: a full one, a piecewise one, or none.

    8 requests, 1 token each        full graph of 8
    9 requests, 1 token each        full graph of 16, 7 rows of padding
    8 decodes and 20 prompt tokens  piecewise graph of 32 tokens, 4 tokens of padding
    a prompt of 2,000 tokens        none: launches take no time beside what they compute

A full graph has attention in it, launched for one token of each of so many requests. A piecewise one leaves it out, so
any batch of so many tokens fits.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal, NamedTuple


class Bucket(NamedTuple):
    """size: requests of a full graph, tokens of a piecewise one."""

    kind: Literal["full", "piecewise"]
    size: int


@dataclass(frozen=True, slots=True)
class GraphBuckets:
    """The sizes that there are graphs for, ascending. full: numbers of requests. piecewise: numbers of tokens."""

    full: tuple[int, ...]
    piecewise: tuple[int, ...]

    @classmethod
    def of(cls, mode: str, sizes: tuple[int, ...], max_num_seqs: int) -> GraphBuckets:
        """Those of a resolved cudagraph_mode and cudagraph_capture_sizes.

        A full graph is never larger than the batch can be: the last one has max_num_seqs rows if the sizes go so far.
        """
        full = tuple(sorted({min(size, max_num_seqs) for size in sizes}))
        return cls(full if mode.startswith("FULL") else (), sizes if mode.endswith("PIECEWISE") else ())

    def choose(self, num_reqs: int, num_tokens: int) -> Bucket | None:
        """The graph of a step in which every request has at least one token; None if it is to be called."""
        if num_tokens == num_reqs:
            size = _least(self.full, num_reqs)
            if size is not None:
                return Bucket("full", size)
        size = _least(self.piecewise, num_tokens)
        return None if size is None else Bucket("piecewise", size)

    def largest_first(self) -> list[Bucket]:
        """All of them: what the first ones needed has room for what those behind them need."""
        buckets = [Bucket("full", size) for size in self.full] + [Bucket("piecewise", size) for size in self.piecewise]
        return sorted(buckets, key=lambda bucket: bucket.size, reverse=True)


def _least(sizes: tuple[int, ...], wanted: int) -> int | None:
    """The least of the ascending sizes that is not less than what is wanted."""
    index = bisect_left(sizes, wanted)
    return sizes[index] if index < len(sizes) else None
