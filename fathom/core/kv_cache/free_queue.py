"""FreeKVCacheBlockQueue: the blocks that nobody uses, in the order in which they are handed out.

    [b7 b2 | b9 b4 b1 ...]
     empty   cached, least recently used first

A hit takes a cached block out of the middle. Its entry is only marked, and passed over when it surfaces: to unlink it
would touch both of its neighbours, and what lies anywhere in a pool of 200,000 blocks is in no cache of the processor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence


class FreeKVCacheBlockQueue:
    """Blocks 1 to `num_blocks` - 1, all of them free and empty.

    An operation is O(1) for each block that it is given, the entries that were marked before included.
    """

    def __init__(self, num_blocks: int) -> None:
        self._empty = list(range(num_blocks - 1, 0, -1))  # the last one is the next
        self._cached: deque[int] = deque()
        self._marked: dict[int, int] = {}  # of a block, so many of its entries in `_cached`: the oldest ones
        self._num_marked = 0
        self._most_marked = num_blocks

    def __len__(self) -> int:
        return len(self._empty) + len(self._cached) - self._num_marked

    def __iter__(self) -> Iterator[int]:
        """The blocks in order."""
        yield from reversed(self._empty)
        marked = dict(self._marked)
        for block in self._cached:
            if marked.get(block):
                marked[block] -= 1
            else:
                yield block

    def popleft_n(self, count: int) -> list[int]:
        """Take the first `count` blocks; there must be as many."""
        empty, cached, marked = self._empty, self._cached, self._marked
        blocks: list[int] = []
        while len(blocks) < count:
            if empty:
                blocks.append(empty.pop())
                continue
            block = cached.popleft()
            if block in marked:
                self._unmark(block)
            else:
                blocks.append(block)
        return blocks

    def appendleft(self, block: int) -> None:
        """Add a block that nobody can find: it is the next one to be handed out."""
        self._empty.append(block)

    def append_n(self, blocks: Sequence[int]) -> None:
        """Add blocks that can be found, behind all others."""
        self._cached.extend(blocks)

    def remove(self, block: int) -> None:
        """Take back a block that was added by `append_n`."""
        self._marked[block] = self._marked.get(block, 0) + 1
        self._num_marked += 1
        if self._num_marked > self._most_marked:
            self._drop_marked()

    def forget(self) -> None:
        """Nobody can find any block now: those that were cached come first, since they have memory already."""
        self._drop_marked()
        self._empty.extend(reversed(self._cached))
        self._cached.clear()

    def _unmark(self, block: int) -> None:
        self._num_marked -= 1
        if self._marked[block] == 1:
            del self._marked[block]
        else:
            self._marked[block] -= 1

    def _drop_marked(self) -> None:
        kept: deque[int] = deque()
        for block in self._cached:
            if block in self._marked:
                self._unmark(block)
            else:
                kept.append(block)
        self._cached = kept
