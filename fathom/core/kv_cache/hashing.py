"""Block hashes: the keys of the prefix cache.

A block's hash covers its tokens, what else makes them special (salt, adapter), and the hash of the block
before it, so that one hash stands for a whole prefix. SHA-256: two tenants' prefixes must not be made to
collide on purpose, and at about a microsecond a block it does not show. The seed is drawn anew by each engine,
so nobody outside can tell which hashes it holds.
"""

from __future__ import annotations

import hashlib
import secrets


class BlockHasher:
    """Hashes blocks of `block_size` tokens."""

    def __init__(self, block_size: int, seed: bytes | None = None) -> None:
        self.block_size = block_size
        self._root = secrets.token_bytes(32) if seed is None else seed

    def hash(self, parent: bytes, tokens: bytes, extra_key: bytes) -> bytes:
        """Hash of one block.

        Args:
            parent: the hash of the block before, or b"" for the first one.
            tokens: the block's token ids as int32.
            extra_key: mixed into the first block, and through the chain into all that follow.
        """
        if parent:
            return hashlib.sha256(parent + tokens).digest()
        return hashlib.sha256(self._root + len(extra_key).to_bytes(4, "little") + extra_key + tokens).digest()
