"""KVCacheManager: which blocks each request holds, in each KV group.

A request's tokens, from the left, as one group's table sees them in a step:

    | cached prefix (hit) | computed before | computed in this step |
    | b4   b9             | b2              | b7   b1               |
      shared, ref +1        own               new, from the pool

In a sliding-window group, blocks that no later query can see are given back and their places in the table
hold the null block.
"""

from __future__ import annotations

from collections import Counter
from math import ceil

from fathom.core.kv_cache.block_pool import NULL_BLOCK, BlockPool
from fathom.core.kv_cache.groups import blocks_per_sequence
from fathom.core.kv_cache.hashing import BlockHasher
from fathom.core.request import Request
from fathom.kv_cache_spec import KVCacheConfig

Blocks = tuple[list[int], ...]


class KVCacheManager:
    """Gives blocks to requests and takes them back.

    Args:
        config: the pool's layout.
        enable_prefix_caching: look prompts up among the cached blocks, and register full blocks.
        max_num_batched_tokens: most tokens that a step may add to one request.
    """

    def __init__(self, config: KVCacheConfig, *, enable_prefix_caching: bool, max_num_batched_tokens: int) -> None:
        self.block_size = config.block_size
        self.hasher = BlockHasher(config.block_size)
        self.pool = BlockPool(config.num_blocks, len(config.groups))
        self.enable_prefix_caching = enable_prefix_caching
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0
        self._groups = config.groups
        self._windows = [group.window for group in config.groups]
        self._has_windows = any(window is not None for window in self._windows)
        self._max_step = max_num_batched_tokens

    def find_cached_prefix(self, request: Request) -> tuple[Blocks, int]:
        """The longest cached prefix of a request that is not running: its blocks, per group, and its tokens.

        At most num_tokens - 1, since the last token must be computed to have logits to sample from.
        """
        if not self.enable_prefix_caching or request.params.skip_reading_prefix_cache:
            return self._no_blocks(), 0
        limit = (request.num_tokens - 1) // self.block_size
        self._hash_full_blocks(request, limit)
        num_blocks = self._longest_hit(request.block_hashes, limit)
        blocks = tuple(self._hit_blocks(group, request.block_hashes, num_blocks) for group in range(len(self._groups)))
        return blocks, num_blocks * self.block_size

    def record_lookup(self, request: Request, num_hit_tokens: int) -> None:
        """Count a lookup that led to an admission."""
        self.prefix_cache_queries += request.num_tokens
        self.prefix_cache_hits += num_hit_tokens

    def can_hold(self, request: Request, cached: Blocks) -> bool:
        """Whether the free blocks suffice for all of the tokens that a waiting request has now.

        Admitting it for less would let several half-computed prompts starve one another.
        """
        whole = blocks_per_sequence(self._groups, self.block_size, request.num_tokens, self._max_step)
        hits = [block for blocks in cached for block in blocks if block != NULL_BLOCK]
        taken_from_queue = sum(map(self.pool.is_free, hits))
        return whole - len(hits) + taken_from_queue <= self.pool.num_free

    def admit(self, request: Request, cached: Blocks) -> None:
        """Start the tables of a request with its cached prefix."""
        for blocks in cached:
            self.pool.touch(blocks)
        held = request.held
        held.tables = tuple(list(blocks) for blocks in cached)
        held.num_registered = len(cached[0])
        held.first_kept = [
            next((i for i, block in enumerate(blocks) if block != NULL_BLOCK), len(blocks)) for blocks in cached
        ]

    def allocate_slots(self, request: Request, num_new_tokens: int, num_behind: int = 0) -> Blocks | None:
        """Make room for the request's next `num_new_tokens` tokens; its cursor is `num_behind` tokens behind.

        There is nothing to do, and no need to call this, while they end at or before `request.settled_until`: within a
        block that the request has, and before that is full.

        Returns:
            the new blocks of each group; () if the last blocks had room; None, changing nothing, if the pool
            cannot give them.
        """
        held = request.held
        tables = held.tables
        cursor = request.num_computed_tokens + num_behind
        end = cursor + num_new_tokens
        missing = -(-end // self.block_size) - len(tables[0])
        if missing > 0:
            if self._has_windows:
                self._release_out_of_window(request, cursor)
            if missing * len(tables) > self.pool.num_free:
                return None
            new: Blocks = tuple([self.pool.allocate(missing) for _ in tables])
            for table, blocks in zip(tables, new, strict=True):
                table.extend(blocks)
        else:
            new = ()
        if end // self.block_size > held.num_registered:
            self.register_full_blocks(request, min(end, request.num_tokens))
        settled = len(tables[0])
        if self.enable_prefix_caching:
            settled = min(settled, held.num_registered + 1)
        request.settled_until = settled * self.block_size - 1
        return new

    def fills_block(self, request: Request, num_new_tokens: int) -> bool:
        """Whether a block is full with the next `num_new_tokens` tokens that is not findable yet."""
        num_full = (request.num_computed_tokens + num_new_tokens) // self.block_size
        return self.enable_prefix_caching and num_full > request.held.num_registered

    def register_full_blocks(self, request: Request, num_tokens: int) -> None:
        """Make the full blocks among a request's first `num_tokens` tokens findable.

        The tokens must be known, and be computed by steps that are launched before any that could find them.
        """
        num_full = num_tokens // self.block_size
        held = request.held
        registered = held.num_registered
        if num_full <= registered or not self.enable_prefix_caching:
            return
        self._hash_full_blocks(request, num_full)
        for group, table in enumerate(held.tables):
            for index in range(registered, num_full):
                if table[index] != NULL_BLOCK:
                    self.pool.register(group, table[index], request.block_hashes[index])
        held.num_registered = num_full

    def block_ids(self, request: Request) -> Blocks:
        """The request's tables as they are now (copies)."""
        return tuple(list(table) for table in request.held.tables)

    def free(self, request: Request, *, keep_cached: bool = True) -> None:
        """Take back all of a request's blocks, the last first, so that a prefix's tail is evicted before its head.

        keep_cached=False also forgets what they hold: for a request whose values are not to be trusted.
        """
        for table in request.held.tables:
            if not keep_cached:
                self.pool.unregister(table)
            self.pool.release(reversed(table))
        request.held.clear()

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes; running requests go on and cache the blocks that they fill from now on."""
        self.pool.reset_cache()

    def check_invariants(self, running: list[Request]) -> None:
        """Raise AssertionError unless the tables are those of the running requests and the pool's books balance."""
        self.pool.check_invariants()
        for request in running:
            slots = len(request.held.tables[0]) * self.block_size
            assert max(request.num_computed_tokens, request.settled_until) <= slots, "a token has no slot"
        uses = Counter(block for request in running for table in request.held.tables for block in table)
        del uses[NULL_BLOCK]
        assert len(uses) == self.pool.num_blocks - 1 - self.pool.num_free, "a block leaked"

    def _no_blocks(self) -> Blocks:
        return tuple([] for _ in self._groups)

    def _hash_full_blocks(self, request: Request, num_blocks: int) -> None:
        """Extend the request's block hashes to its first `num_blocks` blocks, whose tokens must exist."""
        self.hasher.extend(request.block_hashes, num_blocks, request.token_ids, request.extra_key)

    def _longest_hit(self, hashes: list[bytes], limit: int) -> int:
        """Blocks of the longest prefix that is cached in every group.

        A full group needs all of the prefix's blocks, a sliding one those that its window reaches back to from the
        end; each group may shorten what the others found, so go round until nobody does.
        """
        found, previous = limit, -1
        while found != previous:
            previous = found
            for group, window in enumerate(self._windows):
                if window is None:
                    found = self._full_hit(group, hashes, found)
                else:
                    found = self._window_hit(group, hashes, found, self._window_blocks(window))
        return found

    def _full_hit(self, group: int, hashes: list[bytes], limit: int) -> int:
        for count in range(limit):
            if self.pool.find(group, hashes[count]) is None:
                return count
        return limit

    def _window_hit(self, group: int, hashes: list[bytes], limit: int, wanted: int) -> int:
        """The largest prefix, at most `limit` blocks, whose last `wanted` blocks (or all of them) are cached."""
        if wanted == 0:
            return limit
        run = 0
        for index in range(limit - 1, -1, -1):
            run = run + 1 if self.pool.find(group, hashes[index]) is not None else 0
            if run == wanted:
                return index + wanted
        return run

    def _window_blocks(self, window: int) -> int:
        """Blocks before a block boundary that the next query's window reaches into."""
        return ceil((window - 1) / self.block_size)

    def _hit_blocks(self, group: int, hashes: list[bytes], count: int) -> list[int]:
        window = self._windows[group]
        first = 0 if window is None else max(0, count - self._window_blocks(window))
        found = [self.pool.find(group, block_hash) for block_hash in hashes[first:count]]
        return [NULL_BLOCK] * first + [block for block in found if block is not None]

    def _release_out_of_window(self, request: Request, cursor: int) -> None:
        tables, first_kept = request.held.tables, request.held.first_kept
        for group, window in enumerate(self._windows):
            if window is None:
                continue
            oldest_key = cursor - window + 1
            keep_from = min(oldest_key // self.block_size, len(tables[group]))
            begin = first_kept[group]
            if keep_from > begin:
                self.pool.release(tables[group][begin:keep_from])
                tables[group][begin:keep_from] = [NULL_BLOCK] * (keep_from - begin)
                first_kept[group] = keep_from
