"""Ring: messages from one process to others through shared memory, in order, with room for a bounded number of them.

    [ reader 0: position, asleep | reader 1: ... | writer: asleep, progress | slot 0 | slot 1 | ... ]
    slot   [ sequence | length, more | checksum | bytes ]

The n-th chunk goes to slot n mod `slots`, once every reader has left what was there. A reader that has read n chunks
waits for the slot whose sequence is n + 1. Python knows no memory barriers, so a slot counts only if its checksum is
right: a reader that sees the sequence before the bytes looks again. A message that is larger than a slot is cut into
chunks, and the readers make room for its end while its beginning is read: the ring bounds memory, not messages.

Nobody blocks in here. Whoever finds nothing to read, or no room, says so in the ring (`asleep`) and waits elsewhere;
the other side rings a bell after its next chunk (see executor/bell.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from zlib import crc32

from fathom.wire.codec import Frame

_CELL = 8
_LINE = 8  # cells in a cache line, so that nobody writes into another's
_SLOT_HEADER_CELLS = 3
_POSITION, _ASLEEP = 0, 1
_WRITER_ASLEEP, _PROGRESS = 0, 1

SLOT_BYTES = 1 << 15
SLOTS = 32


def ring_bytes(num_readers: int) -> int:
    """Shared memory that a ring takes."""
    return (num_readers + 1) * _LINE * _CELL + SLOTS * SLOT_BYTES


class Ring:
    """A ring in `memory` [ring_bytes(num_readers)], which is all zeros before anybody uses it."""

    def __init__(self, memory: memoryview, num_readers: int) -> None:
        self._bytes = memory
        self._cells = memory.cast("Q")
        self._num_readers = num_readers
        self._writer = num_readers * _LINE
        self._first_slot = (num_readers + 1) * _LINE
        self._written = 0

    # ---------------------------------------------------------------- the writer's

    def has_room(self) -> bool:
        positions = self._cells[0 : self._num_readers * _LINE : _LINE]
        return self._written - min(positions) < SLOTS

    def put(self, chunk: Frame, more: bool) -> None:
        """Write one chunk (at most CHUNK_BYTES) where `has_room`; more: the message goes on in the next one."""
        cell = self._slot(self._written)
        start = (cell + _SLOT_HEADER_CELLS) * _CELL
        self._bytes[start : start + len(chunk)] = chunk
        self._written += 1
        self._cells[cell + 1] = len(chunk) << 1 | more
        self._cells[cell + 2] = crc32(chunk, self._written & 0xFFFFFFFF)
        self._cells[cell] = self._written

    def sleepers(self) -> list[int]:
        """Readers that are to be told of what was written."""
        return [reader for reader in range(self._num_readers) if self._cells[reader * _LINE + _ASLEEP]]

    def set_writer_asleep(self, asleep: bool) -> None:
        self._cells[self._writer + _WRITER_ASLEEP] = asleep

    @property
    def progress(self) -> int:
        """A number that the writer keeps up to date beside its messages."""
        return self._cells[self._writer + _PROGRESS]

    @progress.setter
    def progress(self, value: int) -> None:
        self._cells[self._writer + _PROGRESS] = value

    # ---------------------------------------------------------------- a reader's

    def take(self, reader: int) -> tuple[bytes, bool] | None:
        """The reader's next chunk and whether the message goes on after it; None if it is not there yet."""
        cells = self._cells
        wanted = cells[reader * _LINE + _POSITION] + 1
        cell = self._slot(wanted - 1)
        if cells[cell] != wanted:
            return None
        length, checksum = cells[cell + 1], cells[cell + 2]
        start = (cell + _SLOT_HEADER_CELLS) * _CELL
        chunk = bytes(self._bytes[start : start + (length >> 1)])
        if crc32(chunk, wanted & 0xFFFFFFFF) != checksum:
            return None
        cells[reader * _LINE + _POSITION] = wanted
        return chunk, bool(length & 1)

    def set_asleep(self, reader: int, asleep: bool) -> None:
        self._cells[reader * _LINE + _ASLEEP] = asleep

    @property
    def writer_asleep(self) -> bool:
        return bool(self._cells[self._writer + _WRITER_ASLEEP])

    def _slot(self, number: int) -> int:
        return self._first_slot + number % SLOTS * (SLOT_BYTES // _CELL)


CHUNK_BYTES = SLOT_BYTES - _SLOT_HEADER_CELLS * _CELL

_COUNT = Struct("<I")


class MessageReader:
    """One reader's messages, put together from their chunks."""

    def __init__(self, ring: Ring, reader: int) -> None:
        self._ring = ring
        self._reader = reader
        self._chunks: list[bytes] = []

    def read(self) -> list[Frame] | None:
        """The next message's frames; None if it is not whole yet."""
        while (taken := self._ring.take(self._reader)) is not None:
            chunk, more = taken
            self._chunks.append(chunk)
            if not more:
                message = b"".join(self._chunks)
                self._chunks.clear()
                return _frames(message)
        return None


def chunks(frames: list[Frame]) -> Iterator[tuple[Frame, bool]]:
    """A message's chunks, and whether more of them follow."""
    sizes = [memoryview(frame).nbytes for frame in frames]
    header = _COUNT.pack(len(frames)) + Struct(f"<{len(frames)}Q").pack(*sizes)
    message = memoryview(b"".join([header, *frames]))
    for start in range(0, len(message), CHUNK_BYTES):
        stop = start + CHUNK_BYTES
        yield message[start:stop], stop < len(message)


def _frames(message: bytes) -> list[Frame]:
    (count,) = _COUNT.unpack_from(message)
    sizes = Struct(f"<{count}Q").unpack_from(message, _COUNT.size)
    start, view = _COUNT.size + 8 * count, memoryview(message)
    frames: list[Frame] = []
    for size in sizes:
        frames.append(view[start : start + size])
        start += size
    return frames
