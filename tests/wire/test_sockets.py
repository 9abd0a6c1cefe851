"""The folder of the sockets: private, short enough for the kernel, and not left behind."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from fathom.wire.sockets import (
    ENGINE_IDENTITY,
    input_address,
    make_socket_folder,
    open_socket,
    output_address,
    receive,
    remove_socket_folder,
    send,
)


@pytest.fixture
def private_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short folder of this test's own as the place for temporary files."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


def pid_of_an_ended_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        return process.pid


def make_folder(root: Path, name: str, age_s: float) -> Path:
    folder = root / name
    folder.mkdir()
    (folder / "input").touch()
    os.utime(folder, (time.time() - age_s,) * 2)
    return folder


def test_the_folder_is_private_and_named_after_the_process(private_tmp: Path) -> None:
    old_mask = os.umask(0)
    try:
        folder = make_socket_folder()
    finally:
        os.umask(old_mask)
    assert folder.parent == private_tmp
    assert folder.name.startswith(f"fathom-{os.getpid()}-")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    remove_socket_folder(folder)
    assert not folder.exists()
    remove_socket_folder(folder)


def test_what_dead_processes_left_is_removed_and_nothing_else(private_tmp: Path) -> None:
    dead = pid_of_an_ended_process()
    stale = make_folder(private_tmp, f"fathom-{dead}-abc", age_s=100)
    kept = [
        make_folder(private_tmp, f"fathom-{dead}-new", age_s=5),
        make_folder(private_tmp, f"fathom-{os.getpid()}-mine", age_s=100),
        make_folder(private_tmp, "fathom-docs-v2", age_s=100),
        make_folder(private_tmp, f"fathom-{10**30}-x", age_s=100),
        make_folder(private_tmp, "fathom-²-x", age_s=100),
    ]
    make_socket_folder()
    assert not stale.exists()
    assert all(folder.exists() for folder in kept)


@pytest.mark.parametrize("length", [60, 64, 65, 66, 95, 96, 97, 150])
def test_sockets_open_however_long_the_temporary_folder_is(
    length: int, private_tmp: Path, context: zmq.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = private_tmp / ("x" * (length - len(str(private_tmp)) - 1))
    root.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    assert len(str(root)) == length
    folder = make_socket_folder()
    assert folder.parent in (root, Path("/tmp"))
    assert folder.parent == root or length > 64
    open_socket(context, zmq.PULL, bind=output_address(folder))
    open_socket(context, zmq.ROUTER, bind=input_address(folder))
    remove_socket_folder(folder)


def test_frames_small_and_large_arrive_in_order(private_tmp: Path, context: zmq.Context) -> None:
    folder = make_socket_folder()
    router = open_socket(context, zmq.ROUTER, bind=input_address(folder))
    dealer = open_socket(context, zmq.DEALER, connect=input_address(folder))
    large = np.arange(100_000, dtype=np.int32)
    send(dealer, [b"hello"])
    assert receive(router) == [ENGINE_IDENTITY, b"hello"]
    send(router, [ENGINE_IDENTITY, b"one", memoryview(large)])
    send(router, [ENGINE_IDENTITY, b"two"])
    assert receive(dealer) == [b"one", large.tobytes()]
    assert receive(dealer) == [b"two"]
    remove_socket_folder(folder)


def test_sending_to_nobody_is_an_error(private_tmp: Path, context: zmq.Context) -> None:
    folder = make_socket_folder()
    router = open_socket(context, zmq.ROUTER, bind=input_address(folder))
    with pytest.raises(zmq.ZMQError):
        send(router, [ENGINE_IDENTITY, b"hello"])
    remove_socket_folder(folder)


def test_the_rest_of_an_interrupted_message_is_dropped(private_tmp: Path, context: zmq.Context) -> None:
    folder = make_socket_folder()
    pull = open_socket(context, zmq.PULL, bind=output_address(folder))
    push = open_socket(context, zmq.PUSH, connect=output_address(folder))
    send(push, [b"a1", b"a2", b"a3"])
    assert pull.recv() == b"a1"
    with pytest.raises(zmq.Again):
        receive(pull, zmq.NOBLOCK)
    send(push, [b"b1", b"b2"])
    assert receive(pull) == [b"b1", b"b2"]
    remove_socket_folder(folder)
