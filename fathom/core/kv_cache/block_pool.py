"""BlockPool: who uses which KV block, and which free blocks still hold a prefix worth finding again.

A block is in use (its reference count is the number of requests whose tables hold it) or in the free queue. A
free block keeps its hash until it is handed out again; a hit takes it back out of the queue. Every operation
is O(1) for each block that it touches, and touches little: what is kept of a block is a number in each of three lists,
since objects of its own would each be somewhere else in memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from fathom.core.kv_cache.free_queue import FreeKVCacheBlockQueue

NULL_BLOCK = 0


class BlockPool:
    """A pool of `num_blocks` interchangeable blocks, block 0 being the null block that is never handed out.

    `num_groups` KV groups cache their blocks under the same hashes but apart.
    """

    def __init__(self, num_blocks: int, num_groups: int = 1) -> None:
        self.num_blocks = num_blocks
        self._free = FreeKVCacheBlockQueue(num_blocks)
        self._ref_counts = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._groups = [0] * num_blocks  # of those that have a hash
        self._cached: list[dict[bytes, int]] = [{} for _ in range(num_groups)]
        self._newly_registered: list[int] = []
        self.num_free_cached = 0
        """Blocks in the free queue that still hold a prefix."""
        self.num_ever_used = 1
        """Blocks up to the last one that was ever handed out: those behind it have not been written to."""

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the blocks that are in use, 0 to 1."""
        total = self.num_blocks - 1
        return 1 - len(self._free) / total if total else 0.0

    def find(self, group: int, block_hash: bytes) -> int | None:
        """The block that holds this hash's tokens for this group, in use or free."""
        return self._cached[group].get(block_hash)

    def is_free(self, block: int) -> bool:
        return self._ref_counts[block] == 0

    def touch(self, blocks: Iterable[int]) -> None:
        """Take one more reference to cached blocks; free ones leave the queue."""
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            if self._ref_counts[block] == 0:
                self._free.remove(block)
                self.num_free_cached -= 1
            self._ref_counts[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Hand out `count` blocks with one reference each; what they held is forgotten. The caller checked num_free."""
        blocks = self._free.popleft_n(count)
        for block in blocks:
            if self._hashes[block] is not None:
                self._forget(block)
            self._ref_counts[block] = 1
        if self.num_ever_used < self.num_blocks:
            self.num_ever_used = max(self.num_ever_used, max(blocks, default=0) + 1)
        return blocks

    def register(self, group: int, block: int, block_hash: bytes) -> None:
        """Make a full block findable. If the same tokens are cached already, the older block stays the one found."""
        if self._hashes[block] is None and self._cached[group].setdefault(block_hash, block) == block:
            self._hashes[block] = block_hash
            self._groups[block] = group
            self._newly_registered.append(block)

    def take_newly_registered(self) -> list[int]:
        """The blocks that were registered since the last call."""
        blocks, self._newly_registered = self._newly_registered, []
        return blocks

    def release(self, blocks: Iterable[int]) -> None:
        """Give up one reference to each block, in the order in which they may be evicted.

        Blocks that nobody can find again go to the front of the queue, cached ones to its end.
        """
        cached = []
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            uses = self._ref_counts[block] = self._ref_counts[block] - 1
            if uses:
                continue
            if self._hashes[block] is None:
                self._free.appendleft(block)
            else:
                cached.append(block)
        self._free.append_n(cached)
        self.num_free_cached += len(cached)

    def unregister(self, blocks: Iterable[int]) -> None:
        """Make blocks unfindable, since what they hold is not to be trusted."""
        for block in blocks:
            self._forget(block)

    def reset_cache(self) -> None:
        """Forget every cached prefix; blocks in use stay in use."""
        for cached in self._cached:
            cached.clear()
        self._hashes = [None] * self.num_blocks
        self._free.forget()
        self.num_free_cached = 0

    def check_invariants(self) -> None:
        """Raise AssertionError if the books do not balance. For tests and idle moments: O(num_blocks)."""
        free = list(self._free)
        unused = set(free)
        assert len(free) == len(unused) == len(self._free), "a block is free twice"
        for block in range(1, self.num_blocks):
            assert (self._ref_counts[block] == 0) == (block in unused), f"block {block} is free and in use"
            assert self._ref_counts[block] >= 0, f"block {block} was released too often"
            block_hash = self._hashes[block]
            assert block_hash is None or self._cached[self._groups[block]].get(block_hash) == block, "a block is lost"
        assert NULL_BLOCK not in unused
        assert self._hashes[NULL_BLOCK] is None
        cached = sum(map(len, self._cached))
        assert cached == sum(entry is not None for entry in self._hashes), "the cache holds a block twice"
        assert self.num_free_cached == sum(self._hashes[block] is not None for block in free)

    def _forget(self, block: int) -> None:
        block_hash = self._hashes[block]
        if block_hash is not None:
            del self._cached[self._groups[block]][block_hash]
            self._hashes[block] = None
            self.num_free_cached -= self._ref_counts[block] == 0
