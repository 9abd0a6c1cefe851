"""BlocksAhead: the memory of KV blocks that come next is made ready while the engine has nothing else to do.

A system gives out memory when it is first written to, and zeroes it then: milliseconds in which a step's threads wait.
A cache that keeps prefixes hands out blocks that were never used for as long as there are any, so for a long time
nearly every step would pay. How much was used says how much may come: like a growing list, the cache is given as much
again, up to half a gigabyte.

    blocks   0        num_ever_used         num_ready                num_blocks
             |  used  |  ready to be used   |   promised by the system   |
"""

from __future__ import annotations

from collections.abc import Callable

from fathom.core.kv_cache.block_pool import BlockPool

_PIECE_BYTES = 2 * 2**20  # up to two milliseconds, which a request that comes meanwhile has to wait
_MOST_BYTES = 512 * 2**20


class BlocksAhead:
    """Has memory made ready, piece by piece.

    Args:
        provide: does it, for the blocks from a first one up to another, and says whether that is of any use.
        pool: says what was used.
        block_bytes: of one block.
    """

    def __init__(self, provide: Callable[[int, int], bool], pool: BlockPool, block_bytes: int) -> None:
        self._provide = provide
        self._pool = pool
        self._piece = max(1, _PIECE_BYTES // block_bytes)
        self._most = max(1, _MOST_BYTES // block_bytes)
        self._num_ready = 0
        self._is_of_use = True

    def provide_some(self) -> bool:
        """Make a piece ready, if one is called for; whether it was."""
        used = self._pool.num_ever_used
        first, wanted = max(self._num_ready, used), min(used + min(used, self._most), self._pool.num_blocks)
        if first >= wanted or not self._is_of_use:
            return False
        self._num_ready = min(first + self._piece, wanted)
        self._is_of_use = self._provide(first, self._num_ready)
        return True
