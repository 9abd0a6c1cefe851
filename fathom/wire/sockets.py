"""The sockets between an engine and those who use it: unix sockets in a folder that only this user can enter.

caller  ROUTER, bound at <folder>/input   ->  engine  DEALER                              requests
caller  PULL,   bound at <folder>/output  <-  engine  PUSH                                outputs and replies
front   DEALER                            <-> engine  ROUTER, bound at <folder>/fronts    both, if there are fronts
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import zmq

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fathom.wire.codec import Frame

ENGINE_IDENTITY = b"engine-0"
_PREFIX = "fathom-"
_MAX_FOLDER_BYTES = 96  # a socket's path has at most 103 bytes on macOS, 107 on Linux; "/output" needs 7
_COPY_BYTES = 65_536  # up to which a copy costs less than being told when the original is no longer needed
_STALE_AFTER_S = 60.0  # both ends have long connected by then, and need the files no more


def make_socket_folder() -> Path:
    """A new folder with mode 0700, named after this process, for the socket files."""
    _remove_stale_folders(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    if len(os.fsencode(folder)) > _MAX_FOLDER_BYTES:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir="/tmp"))
    return folder


def remove_socket_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def input_address(folder: Path) -> str:
    return f"ipc://{folder}/input"


def output_address(folder: Path) -> str:
    return f"ipc://{folder}/output"


def fronts_address(folder: Path) -> str:
    return f"ipc://{folder}/fronts"


def open_socket(
    context: zmq.Context[Any], kind: int, *, bind: str = "", connect: str = "", identity: bytes = ENGINE_IDENTITY
) -> Any:
    """A socket without queue limits that never delays the process's exit.

    A ROUTER refuses to send to a peer that is not there (instead of dropping the message), and a DEALER
    says who it is.
    """
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    if kind == zmq.ROUTER:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    if kind == zmq.DEALER:
        socket.setsockopt(zmq.IDENTITY, identity)
    if bind:
        socket.bind(bind)
    if connect:
        socket.connect(connect)
    return socket


def send(socket: Any, frames: Sequence[Frame]) -> None:
    """Send a message's frames; a PUSH or DEALER at a live peer never blocks."""
    if len(frames) == 1:
        socket.send(frames[0], copy=len(frames[0]) < _COPY_BYTES)
    else:
        socket.send_multipart(frames, copy=sum(map(len, frames)) < _COPY_BYTES)


def receive(socket: Any, flags: int = 0) -> list[Frame]:
    """A message's frames, whole: what an interrupted call has left of an earlier one is dropped.

    Raises:
        zmq.Again: with zmq.NOBLOCK, there is none.
    """
    while socket.get(zmq.RCVMORE):
        socket.recv()
    frames: list[Frame] = socket.recv_multipart(flags)
    return frames


def _remove_stale_folders(root: Path) -> None:
    """Delete what a caller and its engine left when both were killed at once.

    A young folder is left alone: its owner may live in another container that shares the place.
    """
    for folder in root.glob(f"{_PREFIX}*-*"):
        owner = folder.name[len(_PREFIX) :].split("-", 1)[0]
        try:
            found = folder.lstat()
            old = time.time() - found.st_mtime > _STALE_AFTER_S
            if old and found.st_uid == os.getuid() and owner.isdecimal() and not psutil.pid_exists(int(owner)):
                remove_socket_folder(folder)
        except (OSError, OverflowError):  # gone meanwhile, or a number that is no process id
            continue
