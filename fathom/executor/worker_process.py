"""WorkerProcess: one worker's process as the executor sees it: its end of everything that they share, and its end.

Everything is inherited open, as descriptors: shared memory and the file where the ranks meet are memfds, so nothing
has a name, and nothing is left however the processes end.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import signal
import socket
import subprocess
import time
from dataclasses import asdict, dataclass

import psutil

from fathom.dist.place import Place
from fathom.executor.bell import Bell
from fathom.executor.messages import WorkerReply
from fathom.executor.ring import MessageReader, Ring, ring_bytes
from fathom.processes import exit_words, spawn
from fathom.wire.codec import Decoder

_END_S = 2.0
"""How long a worker has to end once the executor has let go of it; then it is killed."""
_STACK_S = 0.2
"""How long a worker has to write its stack."""


@dataclass(frozen=True)
class Inherited:
    """What a worker is started with: its place, and descriptors.

    memory: the rings; see `shared_rings`. bell: a socket. meeting, sums: empty files, for dist.meeting.meet_in_files.
    stack: a file that the worker writes its Python stack to when it gets SIGUSR1 or crashes, and the error it ends on.
    """

    place: Place
    memory: int
    bell: int
    meeting: int
    sums: int
    stack: int

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Inherited:
        fields = json.loads(text)
        return cls(Place(**fields.pop("place")), **fields)


def shared_rings(memory_fd: int, num_workers: int) -> tuple[Ring, list[Ring]]:
    """The ring of calls, which all workers read, and a ring of each worker's replies, in a file of `rings_bytes`."""
    memory = memoryview(mmap.mmap(memory_fd, rings_bytes(num_workers)))
    calls, reply = ring_bytes(num_workers), ring_bytes(1)
    starts = [calls + rank * reply for rank in range(num_workers)]
    return Ring(memory[:calls], num_workers), [Ring(memory[start : start + reply], 1) for start in starts]


def rings_bytes(num_workers: int) -> int:
    return ring_bytes(num_workers) + num_workers * ring_bytes(1)


class WorkerProcess:
    """A running worker."""

    def __init__(self, place: Place, memory: int, meeting: int, sums: int, replies: Ring) -> None:
        self.place = place
        self.replies = replies
        self.reader = MessageReader(replies, 0)
        self.decoder: Decoder[WorkerReply] = Decoder(WorkerReply)
        self._stack = os.memfd_create("fathom-stack")
        fcntl.fcntl(self._stack, fcntl.F_SETFL, os.O_APPEND)  # each stack begins where the emptied file does
        here, there = socket.socketpair()
        self.bell = Bell(here)
        descriptors = [memory, there.fileno(), meeting, sums, self._stack]
        try:
            inherited = Inherited(place, *descriptors)
            self.process = spawn("fathom.executor.worker_main", [inherited.encode()], descriptors)
        finally:
            there.close()
        self._psutil = psutil.Process(self.process.pid)

    @property
    def name(self) -> str:
        return f"worker rank {self.place.rank} (pid {self.process.pid})"

    @property
    def num_finished_calls(self) -> int:
        return self.replies.progress

    def cpu_seconds(self) -> float:
        """What it has computed so far; 0 if it is gone."""
        with contextlib.suppress(psutil.Error):
            times = self._psutil.cpu_times()
            return times.user + times.system
        return 0.0

    def status(self) -> str:
        """One of psutil's words for what its main thread does."""
        try:
            return self._psutil.status()
        except psutil.Error:
            return psutil.STATUS_DEAD

    def ask_for_stack(self) -> str:
        """The Python stack of its main thread, innermost call first; empty if it does not answer."""
        os.truncate(self._stack, 0)
        with contextlib.suppress(OSError):
            self.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + _STACK_S
        text = ""
        while time.monotonic() < deadline and not (text and text == self.last_stack()):
            text = self.last_stack()
            time.sleep(_STACK_S / 10)
        return text

    def last_stack(self) -> str:
        """What it has written when it was asked, has crashed, or has ended on an error."""
        return os.pread(self._stack, 1 << 16, 0).decode(errors="replace")

    def exit_words(self) -> str:
        """How it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S)
        return exit_words(self.process.returncode)

    def let_go(self) -> None:
        """Tell it to end."""
        self.bell.close()

    def wait_for_end(self) -> None:
        """Wait until it has ended, or end it."""
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._stack)
