"""EngineProcess: starts the engine's process, watches it, and ends it. Nobody is left behind.

The process is spawned, never forked, and from a command line instead of a pickled function: nothing of the
caller's script is run again in the child, so scripts need no `if __name__ == "__main__"`. It is started before
the caller has resolved the model, so that importing torch there and reading files here overlap; what to build
follows in a StartEngine message.

Each side notices the other's end at once. The caller holds a handle (pidfd) that becomes readable when the
engine exits; the engine reads a pipe that closes when the caller exits, by kill -9 too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import zmq

from fathom.client.base import raise_remote
from fathom.errors import EngineDeadError, EngineStartError
from fathom.wire.codec import Decoder, Encoder
from fathom.wire.messages import (
    EngineFailed,
    EngineHello,
    EngineReady,
    EngineSetup,
    FromEngine,
    StartEngine,
)
from fathom.wire.sockets import (
    ENGINE_IDENTITY,
    input_address,
    make_socket_folder,
    open_socket,
    output_address,
    remove_socket_folder,
    send,
)

_BOOTSTRAP = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from fathom.core.proc import main; main(sys.argv[2:])"
)
_POLL_MS = 500  # how often a dead engine is looked for where there is no pidfd


class EngineProcess:
    """One engine process and the two sockets to it."""

    def __init__(self) -> None:
        self.folder = make_socket_folder()
        self._context = zmq.Context()
        self.input = open_socket(self._context, zmq.ROUTER, bind=input_address(self.folder))
        self.output = open_socket(self._context, zmq.PULL, bind=output_address(self.folder))
        self.spawn_time = time.time()
        alive_read, self._alive_write = os.pipe()
        try:
            self.process = _spawn(self.folder, alive_read)
        finally:
            os.close(alive_read)
        self.pidfd = _pidfd(self.process.pid)
        self._encoder = Encoder()
        self._finalizer = weakref.finalize(
            self,
            _end,
            self.process,
            self._alive_write,
            self.pidfd,
            self.folder,
            self._context,
            self.input,
            self.output,
        )

    def start(self, setup: EngineSetup, timeout_s: float) -> None:
        """Tell the process what to build, once it has said hello."""
        hello = self._receive_boot_message(time.monotonic() + timeout_s, timeout_s)
        assert isinstance(hello, EngineHello)
        self.send(StartEngine(setup, self.spawn_time))

    def wait_ready(self, timeout_s: float) -> EngineReady:
        """Block until the engine is up.

        Raises:
            the engine's own error if it fails to start; EngineStartError if it dies or takes too long.
        """
        message = self._receive_boot_message(time.monotonic() + timeout_s, timeout_s)
        if isinstance(message, EngineFailed):
            self.close()
            raise_remote(message.error, during_start=True)
        assert isinstance(message, EngineReady)
        return message

    def send(self, message: Any) -> None:
        """Send a message to the engine.

        Raises:
            EngineDeadError: the process is gone.
        """
        self.check_alive()
        try:
            send(self.input, [ENGINE_IDENTITY, *self._encoder.encode(message)])
        except zmq.ZMQError as error:
            raise self.death() from error

    def check_alive(self) -> None:
        """Raise EngineDeadError if the process is gone."""
        if not self._finalizer.alive or self.process.poll() is not None:
            raise self.death()

    def death(self) -> EngineDeadError:
        """The error that says how the process ended."""
        if not self._finalizer.alive:
            return EngineDeadError("the engine was shut down")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=1)
        return EngineDeadError(f"the engine process {self.process.pid} {exit_words(self.process.returncode)}")

    def close(self) -> None:
        """End the process and remove the sockets. May be called twice."""
        self._finalizer()

    def _receive_boot_message(self, deadline: float, timeout_s: float) -> FromEngine:
        poller = zmq.Poller()
        poller.register(self.input, zmq.POLLIN)
        if self.pidfd is not None:
            poller.register(self.pidfd, zmq.POLLIN)
        decoder: Decoder[FromEngine] = Decoder(FromEngine)
        while True:
            left_ms = (deadline - time.monotonic()) * 1000
            ready = dict(poller.poll(int(max(0, min(left_ms, _POLL_MS)))))
            if self.input in ready:
                return decoder.decode(self.input.recv_multipart()[1:])
            if self.process.poll() is not None:
                words = exit_words(self.process.returncode)
                self.close()
                raise EngineStartError(f"the engine process {words} before it was ready; its output above says more")
            if left_ms <= 0:
                self.close()
                raise EngineStartError(
                    f"the engine process was not ready within {timeout_s:g} s.",
                    parameter="ready_timeout_s",
                    value=timeout_s,
                    hint="Give it more with ready_timeout_s or FATHOM_ENGINE_READY_TIMEOUT_S.",
                )


def exit_words(code: int | None) -> str:
    """How a process ended, for people."""
    if code is None:
        return "does not answer"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"
    return f"exited with code {code}"


def _spawn(folder: Path, alive_fd: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _BOOTSTRAP, json.dumps(sys.path), str(folder), str(alive_fd)]
    return subprocess.Popen(command, pass_fds=(alive_fd,), stdin=subprocess.DEVNULL)


def _pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process exits; None where the system has no such thing."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _end(
    process: subprocess.Popen[bytes],
    alive_fd: int,
    pidfd: int | None,
    folder: Path,
    context: zmq.Context[Any],
    *sockets: Any,
) -> None:
    """Close everything; static, so that it also runs when the owner is collected or the interpreter exits."""
    os.close(alive_fd)  # the engine leaves when it sees this
    try:
        process.wait(timeout=2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if pidfd is not None:
        os.close(pidfd)
    for socket in sockets:
        socket.close(linger=0)
    context.term()
    remove_socket_folder(folder)
