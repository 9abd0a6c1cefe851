"""The two sockets between a caller and its engine: unix sockets in a folder that only this user can enter.

caller  ROUTER, bound at <folder>/input   ->  engine  DEALER     requests
caller  PULL,   bound at <folder>/output  <-  engine  PUSH       outputs and replies
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import zmq

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fathom.wire.codec import Frame

ENGINE_IDENTITY = b"engine-0"
_PREFIX = "fathom-"
_MAX_UNIX_PATH = 100  # the kernel's limit is 107 bytes; the file name needs a few


def make_socket_folder() -> Path:
    """A new folder with mode 0700, named after this process, for the socket files."""
    _remove_stale_folders(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    if len(str(folder)) > _MAX_UNIX_PATH:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir="/tmp"))
    return folder


def remove_socket_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def input_address(folder: Path) -> str:
    return f"ipc://{folder}/input"


def output_address(folder: Path) -> str:
    return f"ipc://{folder}/output"


def open_socket(context: zmq.Context[Any], kind: int, *, bind: str = "", connect: str = "") -> Any:
    """A socket without queue limits that never delays the process's exit.

    A ROUTER refuses to send to an engine that is not there (instead of dropping the message), and a DEALER
    says who it is.
    """
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    if kind == zmq.ROUTER:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    if kind == zmq.DEALER:
        socket.setsockopt(zmq.IDENTITY, ENGINE_IDENTITY)
    if bind:
        socket.bind(bind)
    if connect:
        socket.connect(connect)
    return socket


def send(socket: Any, frames: Sequence[Frame]) -> None:
    """Send a message's frames; a PUSH or DEALER at a live peer never blocks."""
    socket.send_multipart(frames, copy=sum(map(len, frames)) < 65_536)


def _remove_stale_folders(root: Path) -> None:
    """Delete what a caller and its engine left when both were killed at once."""
    for folder in root.glob(f"{_PREFIX}*-*"):
        owner = folder.name[len(_PREFIX) :].split("-", 1)[0]
        try:
            if owner.isdigit() and folder.stat().st_uid == os.getuid() and not psutil.pid_exists(int(owner)):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
