"""SharedCounts: what all fronts have under way, in a file that they map.

                requests  answers  tokens  process
    front 0   [         |        |        |         ]   each front writes its own row, and reads the columns:
    front 1   [         |        |        |         ]   their sums, and the ids of all processes

A lock on the file makes "look at the total, then add" one operation, so that fronts cannot pass a limit together. The
kernel lets go of it when its holder is killed, and the parent then clears the row.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_COLUMNS = 4
_BYTES = 8


def create_counts(path: Path, num_fronts: int) -> None:
    """Make the file, with nothing under way."""
    path.write_bytes(bytes(num_fronts * _COLUMNS * _BYTES))


class SharedCounts:
    """The counts of one front among all of them.

    Args:
        path: of the file.
        front: this front's row.
    """

    def __init__(self, path: Path, front: int) -> None:
        self._file = path.open("r+b")
        self._numbers = memoryview(mmap.mmap(self._file.fileno(), 0)).cast("q")
        self._first = front * _COLUMNS

    def announce(self) -> None:
        """This process is the front."""
        self._numbers[self._first + 3] = os.getpid()

    def processes(self) -> dict[str, int]:
        """Process ids of the fronts that there are, by number."""
        return {str(front): number for front, number in enumerate(self._numbers[3::_COLUMNS]) if number}

    @property
    def requests(self) -> int:
        return sum(self._numbers[0::_COLUMNS])

    @property
    def answers(self) -> int:
        return sum(self._numbers[1::_COLUMNS])

    @property
    def tokens(self) -> int:
        return sum(self._numbers[2::_COLUMNS])

    def add(self, *, requests: int = 0, answers: int = 0, tokens: int = 0) -> None:
        """More of this front is under way, or less."""
        for column, number in enumerate((requests, answers, tokens), start=self._first):
            self._numbers[column] += number

    def clear(self) -> None:
        """This front has ended, and all that it had under way."""
        self._numbers[self._first : self._first + _COLUMNS] = memoryview(bytes(_COLUMNS * _BYTES)).cast("q")

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Held for microseconds; others wait meanwhile."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
