"""Block hashes: the keys of the prefix cache.

A block's hash covers its tokens, what else makes them special (salt, adapter), and the hash of the block
before it, so that one hash stands for a whole prefix. SHA-256: two tenants' prefixes must not be made to
collide on purpose, and at about a microsecond a block it does not show. The seed is drawn anew by each engine,
so nobody outside can tell which hashes it holds.
"""

from __future__ import annotations

import secrets
from array import array
from hashlib import sha256


class BlockHasher:
    """Hashes blocks of `block_size` tokens."""

    def __init__(self, block_size: int, seed: bytes | None = None) -> None:
        self.block_size = block_size
        self._root = secrets.token_bytes(32) if seed is None else seed

    def extend(self, hashes: list[bytes], num_blocks: int, token_ids: array[int], extra_key: bytes) -> None:
        """Extend the hashes of a sequence's first blocks to those of its first `num_blocks`.

        Args:
            token_ids: the sequence's, as int32, at least `num_blocks` full blocks of them.
            extra_key: mixed into the first block, and through the chain into all that follow.
        """
        first, size = len(hashes), self.block_size
        if num_blocks <= first:
            return
        before = hashes[-1] if hashes else self._root + len(extra_key).to_bytes(4, "little") + extra_key
        tokens = token_ids[first * size : num_blocks * size].tobytes()
        block_bytes = size * token_ids.itemsize
        for start in range(0, len(tokens), block_bytes):
            before = sha256(before + tokens[start : start + block_bytes]).digest()
            hashes.append(before)
