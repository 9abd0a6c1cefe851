"""Bell: one end of a socket pair between two processes. A byte wakes the other side; its closing tells of its end.

A closed end is seen at once, however the process ended, since the system closes it.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Iterable

_PARENT_CHECK_S = 0.5


class PeerGoneError(Exception):
    """The process at the other end is gone."""


class Bell:
    """One end; takes the socket over."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end

    @classmethod
    def inherited(cls, descriptor: int) -> Bell:
        return cls(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        return self._end.fileno()

    def ring(self) -> None:
        """Wake the other side, if it is there."""
        with contextlib.suppress(OSError):  # full of rings that were not heard yet; or gone, which `drain` tells
            self._end.send(b"!")

    def drain(self) -> None:
        """Forget all rings so far.

        Raises:
            PeerGoneError: the other side is closed.
        """
        try:
            while self._end.recv(4096):
                pass
        except BlockingIOError:
            return
        except OSError as error:
            raise PeerGoneError from error
        raise PeerGoneError

    def wait(self, timeout_s: float) -> None:
        """Sleep until the other side rings, or for so long.

        Raises:
            PeerGoneError: the other side is closed.
        """
        wait_for_any([self], timeout_s)
        self.drain()

    def wait_for_end(self, timeout_s: float) -> bool:
        """Sleep until the other side is closed, or for so long; rings are left for `wait`, on another thread."""
        poll = select.poll()
        poll.register(self._end, 0)  # asks for nothing, and so is told of a hang-up only
        return bool(poll.poll(timeout_s * 1000))

    def close(self) -> None:
        self._end.close()


def wait_for_any(bells: Iterable[Bell], timeout_s: float) -> None:
    """Sleep until one of them rings or loses its other side, or for so long."""
    poll = select.poll()
    for bell in bells:
        poll.register(bell, select.POLLIN)
    poll.poll(timeout_s * 1000)


def wait_for_parent_s_end(bell: Bell) -> None:
    """Return when this process's parent closes the bell or is gone.

    The parent's id is watched too, since a process that it forked may keep the bell open.
    """
    parent = os.getppid()
    while os.getppid() == parent:
        if bell.wait_for_end(_PARENT_CHECK_S):
            return
