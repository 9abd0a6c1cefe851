"""UnderWay: how much is under way, for the limits and for those who ask. In one process it is three numbers."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class UnderWay(Protocol):
    """Totals over all processes that serve an engine; see group/shared_counts.py for more than one.

    requests: of the engine. answers: that they ask for. tokens: of prompts whose answers have not begun.
    """

    @property
    def requests(self) -> int: ...

    @property
    def answers(self) -> int: ...

    @property
    def tokens(self) -> int: ...

    def add(self, *, requests: int = 0, answers: int = 0, tokens: int = 0) -> None:
        """More of this process is under way, or less."""

    def exclusive(self) -> AbstractContextManager[object]:
        """While it is held no other process adds: for looking at a total and adding to it."""


class OwnCounts:
    """What one process has under way that serves alone."""

    def __init__(self) -> None:
        self.requests = self.answers = self.tokens = 0

    def add(self, *, requests: int = 0, answers: int = 0, tokens: int = 0) -> None:
        """More is under way, or less."""
        self.requests += requests
        self.answers += answers
        self.tokens += tokens

    def exclusive(self) -> AbstractContextManager[object]:
        """Nobody else counts here."""
        return nullcontext()
