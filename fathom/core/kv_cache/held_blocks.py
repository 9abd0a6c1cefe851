"""HeldBlocks: the KV blocks of one request."""

from __future__ import annotations


class HeldBlocks:
    """What the KV manager knows of a request.

    Attributes:
        tables: the request's blocks, in each KV group; () while it has none.
        num_registered: of its first blocks, those that have been made findable.
        first_kept: in each group, where the first block is that has not been given back.
    """

    __slots__ = ("first_kept", "num_registered", "tables")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.tables: tuple[list[int], ...] = ()
        self.num_registered = 0
        self.first_kept: list[int] = []
