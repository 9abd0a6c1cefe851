"""EngineProcess: starts the engine's process, watches it, and ends it. Nobody is left behind.

The process is started before the caller has resolved the model, so that importing torch there and reading files here
overlap; what to build follows in a StartEngine message.

Each side notices the other's end at once. The caller holds a handle (pidfd) that becomes readable when the
engine exits; the engine reads a pipe that closes when the caller exits, by kill -9 too.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import weakref
from pathlib import Path
from typing import Any

import msgspec
import zmq

from fathom import env
from fathom.client.base import raise_remote
from fathom.client.interrupts import InterruptsDeferred
from fathom.config import ParallelOptions
from fathom.errors import EngineDeadError, EngineStartError
from fathom.processes import exit_words, spawn
from fathom.wire.codec import Decoder, Encoder
from fathom.wire.messages import (
    EngineFailed,
    EngineHello,
    EngineReady,
    EngineSetup,
    FromEngine,
    RemoteError,
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

_POLL_MS = 500  # how often a dead engine is looked for where there is no pidfd
LAST_WORDS_MS = 5000
"""How long what a process sent before it ended may still be on its way: while this one does not get to run."""
_ERROR_EXIT = 1  # of a process that has sent its error


class EngineProcess:
    """One engine process and the two sockets to it. For one thread at a time, of the process that made it.

    Args:
        parallel: how many workers it will have, since it starts their processes before it knows the rest.

    Raises:
        EngineStartError: the system has no process, no socket or no file for it.
    """

    def __init__(self, parallel: ParallelOptions) -> None:
        if env.in_engine_process():  # by importing the script or module of a logits processor
            raise EngineStartError(
                "this code starts an engine while an engine's process imports it.",
                hint='Put the lines that do so under `if __name__ == "__main__":`.',
            )
        self.folder = make_socket_folder()
        self._context = zmq.Context()
        try:
            self.input = open_socket(self._context, zmq.ROUTER, bind=input_address(self.folder))
            self.output = open_socket(self._context, zmq.PULL, bind=output_address(self.folder))
            self.spawn_time = time.time()
            self.process, alive_fd = _spawn(self.folder, parallel)
        except BaseException as error:
            self._context.destroy(linger=0)
            remove_socket_folder(self.folder)
            if isinstance(error, OSError | zmq.ZMQError):
                raise EngineStartError(f"the engine process could not be started: {error}.") from error
            raise
        self.pidfd = _pidfd(self.process.pid)
        self.last_words: RemoteError | None = None  # why it says that it ends
        self._timeout_s = 0.0
        self._deadline = 0.0
        self._encoder = Encoder()
        self._boot_decoder: Decoder[FromEngine] = Decoder(FromEngine)
        self._finalizer = weakref.finalize(
            self,
            _end,
            os.getpid(),
            self.process,
            alive_fd,
            self.pidfd,
            self.folder,
            self._context,
            self.input,
            self.output,
        )

    # ---------------------------------------------------------------- boot

    def set_deadline(self, timeout_s: float) -> None:
        """The process has this long, from now, to be ready."""
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s

    def start(self, setup: EngineSetup, fronts: bool = False) -> None:
        """Tell the process, once it has said hello, what to build, and whether its requests will come from fronts."""
        try:
            self.send(StartEngine(setup, self.spawn_time, fronts))
        except EngineDeadError:
            self.boot_message()
            raise

    def wait_boot_message(self) -> EngineHello | EngineReady:
        """Block until the next message of the boot; errors as in `boot_message`."""
        while (message := self.boot_message(_POLL_MS)) is None:
            pass
        return message

    def boot_message(self, wait_ms: int = 0) -> EngineHello | EngineReady | None:
        """The next message of the boot, if it comes within `wait_ms`.

        Raises:
            the engine's own error if it failed to start; EngineStartError if it died or is late. Then it is closed.
        """
        left_ms = (self._deadline - time.monotonic()) * 1000
        message = self._receive_boot_message(max(0, min(wait_ms, int(left_ms) + 1)))
        if message is None and self.process.poll() is not None:
            message = self._receive_boot_message(LAST_WORDS_MS if self.process.returncode == _ERROR_EXIT else 0)
            if message is None:
                words = exit_words(self.process.returncode)
                self.close()
                raise EngineStartError(f"the engine process {words} before it was ready; its output above says more.")
        if message is None and left_ms <= 0:
            self.close()
            raise EngineStartError(
                f"the engine process was not ready within {self._timeout_s:g} s.",
                parameter="ready_timeout_s",
                value=self._timeout_s,
                hint="Give it more with ready_timeout_s or FATHOM_ENGINE_READY_TIMEOUT_S.",
            )
        if isinstance(message, EngineFailed):
            self.close()
            raise_remote(message.error, during_start=True)
        return message

    def _receive_boot_message(self, wait_ms: int) -> EngineHello | EngineReady | EngineFailed | None:
        poller = zmq.Poller()
        poller.register(self.input, zmq.POLLIN)
        if self.pidfd is not None and self.process.returncode is None:
            poller.register(self.pidfd, zmq.POLLIN)
        if self.input not in dict(poller.poll(wait_ms)):
            return None
        identity, *frames = self.input.recv_multipart()
        if identity != ENGINE_IDENTITY:
            return None
        message = self._boot_decoder.decode(frames)
        assert isinstance(message, EngineHello | EngineReady | EngineFailed)
        return message

    # ---------------------------------------------------------------- life

    def send(self, message: Any) -> None:
        """Send a message to the engine.

        Raises:
            EngineDeadError: the process is gone.
        """
        self.check_alive()
        frames = [ENGINE_IDENTITY, *self._encoder.encode(message)]
        with InterruptsDeferred():
            try:
                send(self.input, frames)
            except zmq.ZMQError as error:
                raise self.death() from error
            except BaseException:  # another signal's, with half of a message sent: the next would pass for its rest
                self.close()
                raise

    def check_alive(self) -> None:
        """Raise EngineDeadError if the process is gone."""
        if not self._finalizer.alive or self.process.poll() is not None:
            raise self.death()

    def owes_last_words(self) -> bool:
        """Whether the process has ended on an error of its own, and what it said of it has not been taken in yet."""
        return self._finalizer.alive and self.process.poll() == _ERROR_EXIT and self.last_words is None

    def death(self) -> EngineDeadError:
        """The error that says how the process ended."""
        if not self._finalizer.alive:
            return EngineDeadError("the engine was shut down")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=1)
        words = f"the engine process {self.process.pid} {exit_words(self.process.returncode)}"
        if self.last_words is None:
            return EngineDeadError(words)
        error = EngineDeadError(f"{words}: {self.last_words.message}")
        error.add_note(f"raised in the engine process:\n{self.last_words.traceback}")
        return error

    def close(self) -> None:
        """End the process and remove the sockets. May be called twice."""
        self._finalizer()


def _spawn(folder: Path, parallel: ParallelOptions) -> tuple[subprocess.Popen[bytes], int]:
    """The process, and the end of its pipe that keeps it alive as long as it is open and silent."""
    alive_read, alive_write = os.pipe()
    try:
        arguments = [str(folder), str(alive_read), msgspec.json.encode(parallel).decode()]
        process = spawn("fathom.core.proc", arguments, [alive_read])
    except BaseException:
        os.close(alive_write)
        raise
    finally:
        os.close(alive_read)
    return process, alive_write


def _pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process exits; None where the system has no such thing."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _end(
    owner: int,
    process: subprocess.Popen[bytes],
    alive_fd: int,
    pidfd: int | None,
    folder: Path,
    context: zmq.Context[Any],
    *sockets: Any,
) -> None:
    """Close everything; static, so that it also runs when the object is collected or the interpreter exits.

    Not in a process that the owner forked: it has copies of all this, and none of it is its own.
    """
    if os.getpid() != owner:
        return
    with contextlib.suppress(OSError):
        os.write(alive_fd, b"x")  # the engine leaves when it sees this, whoever else holds a copy of the pipe
    os.close(alive_fd)
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
