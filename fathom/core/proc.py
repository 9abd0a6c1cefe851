"""EngineCoreProc: EngineCore in a process of its own. A busy loop between two sockets and step()."""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import zmq
from setproctitle import setproctitle

from fathom.allocator import HeapTrimmer, calm_garbage_collector
from fathom.config import ParallelOptions
from fathom.core.control import encode_reply
from fathom.core.engine_core import EngineCore
from fathom.core.fronts import Fronts
from fathom.core.outbox import Outbox
from fathom.errors import EngineDeadError
from fathom.executor.choice import prepare_executor
from fathom.hardware import limit_openmp_spinning
from fathom.log import setup_logging
from fathom.phases import Phases
from fathom.wire.codec import Decoder, Encoder
from fathom.wire.messages import (
    AbortRequests,
    AddRequests,
    EngineCoreOutputs,
    EngineFailed,
    EngineHello,
    FrontGone,
    StartEngine,
    ToEngine,
    UtilityCall,
)
from fathom.wire.remote_errors import to_remote_error
from fathom.wire.sockets import (
    fronts_address,
    input_address,
    open_socket,
    output_address,
    remove_socket_folder,
    send,
)

logger = logging.getLogger(__name__)
_PARENT_CHECK_S = 0.5
_QUIET_MS = 20


class EngineCoreProc:
    """Feeds an EngineCore from the input socket and sends what each step gives to the output socket."""

    def __init__(self, core: EngineCore, input_socket: Any, output_socket: Any) -> None:
        self._core = core
        self._input = input_socket
        self._output = output_socket
        self._decoder: Decoder[ToEngine] = Decoder(ToEngine)
        self._encoder = Encoder()
        self._poller = zmq.Poller()
        for descriptor in core.executor.descriptors():
            self._poller.register(descriptor, zmq.POLLIN)
        self._sockets: set[Any] = set()
        self._listen_to(input_socket)
        self._heap = HeapTrimmer()
        self._outbox = Outbox()
        # Tells of changes only, so a socket must have been read empty before; it is much cheaper than trying to read.
        self._arrived = select.poll()
        self._arrived.register(input_socket.FD, select.POLLIN)

    def _listen_to(self, socket: Any) -> None:
        self._sockets.add(socket)
        self._poller.register(socket, zmq.POLLIN)

    def run_busy_loop(self) -> None:
        """Take what has arrived, run a step, send its outputs; wait for messages only when there is no work.

        It never returns: the process ends with its caller (see `_exit_with_caller`).
        """
        while True:
            self._heap.tick()
            if self._core.has_work():
                if self._has_arrived():
                    self._take_messages()
            else:
                self._send(self._outbox.take())
                self._wait_for_message()
                self._take_messages()
            if self._core.has_work():
                outputs = self._core.step()
                # The step of a prompt's chunk has numbers only.
                if outputs.outputs or outputs.tokens or outputs.step is not None:
                    self._deliver(outputs)

    def _has_arrived(self) -> bool:
        return bool(self._arrived.poll(0))

    def _deliver(self, outputs: EngineCoreOutputs) -> None:
        self._send(self._outbox.add(outputs))

    def _send(self, messages: list[EngineCoreOutputs]) -> None:
        for message in messages:
            send(self._output, self._encoder.encode(message))

    def _wait_for_message(self) -> None:
        """Sleep until there is one; a worker that ends meanwhile is noticed, and raises.

        Once it has been quiet for a moment, and for as long as it is, memory is made ready for what comes.
        """
        timeout_ms: int | None = _QUIET_MS
        while self._sockets.isdisjoint(dict(self._poller.poll(timeout_ms))):
            self._core.executor.check()
            timeout_ms = 0 if self._core.blocks_ahead.provide_some() else None

    def _take_messages(self) -> None:
        """Handle every message that is there."""
        while True:
            try:
                frames = self._input.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = self._decoder.decode(frames)
            except msgspec.DecodeError:
                logger.exception("a message that could not be read is ignored")
                continue
            self._send(self._outbox.take())  # it came before what the message will lead to
            self._handle(message)

    def _handle(self, message: ToEngine) -> None:
        if isinstance(message, AddRequests):
            self._core.add_requests(message)
        elif isinstance(message, AbortRequests):
            self._core.abort_requests(message)
        elif isinstance(message, UtilityCall):
            send(self._output, encode_reply(self._encoder, self._core.call(message)))


class SharedEngineProc(EngineCoreProc):
    """An engine whose requests come from fronts. The caller who started it says when one of them is gone."""

    def __init__(self, core: EngineCore, input_socket: Any, output_socket: Any, fronts_socket: Any) -> None:
        super().__init__(core, input_socket, output_socket)
        self._fronts = Fronts(core, fronts_socket)
        self._listen_to(fronts_socket)

    def _has_arrived(self) -> bool:
        return True  # a ROUTER's descriptor does not tell, once it has been sent through

    def _take_messages(self) -> None:
        super()._take_messages()
        self._fronts.take_messages()

    def _handle(self, message: ToEngine) -> None:
        if isinstance(message, FrontGone):
            self._fronts.drop(message.identity)
        else:
            super()._handle(message)

    def _deliver(self, outputs: EngineCoreOutputs) -> None:
        self._fronts.deliver(outputs)


def run_engine_core(folder: Path, parallel: ParallelOptions) -> None:
    """Connect, learn what to build, build it, say so, and serve until the caller is done."""
    context = zmq.Context()
    input_socket = open_socket(context, zmq.DEALER, connect=input_address(folder))
    output_socket = open_socket(context, zmq.PUSH, connect=output_address(folder))
    encoder = Encoder()
    send(input_socket, encoder.encode(EngineHello(os.getpid())))
    try:
        make_executor = prepare_executor(parallel)  # takes seconds, while the caller reads the model's files
        decoder: Decoder[StartEngine] = Decoder(StartEngine)
        start = decoder.decode(input_socket.recv_multipart())
        phases = Phases(start.spawn_time)
        phases.mark("start process, import")
        core = EngineCore(start.setup, phases, make_executor)
        proc = EngineCoreProc(core, input_socket, output_socket)
        if start.fronts:
            fronts_socket = open_socket(context, zmq.ROUTER, bind=fronts_address(folder))
            proc = SharedEngineProc(core, input_socket, output_socket, fronts_socket)
    except Exception as error:
        send(input_socket, encoder.encode(EngineFailed(to_remote_error(error))))
        context.destroy(linger=2000)
        sys.exit(1)
    calm_garbage_collector()
    send(input_socket, encoder.encode(core.ready))
    try:
        proc.run_busy_loop()
    except Exception as error:
        send(output_socket, encoder.encode(EngineFailed(to_remote_error(error))))
        context.destroy(linger=2000)
        raise
    finally:
        core.close()


def main(arguments: list[str]) -> None:
    """The process's entry point.

    Args:
        arguments: socket folder, descriptor that gets readable when the caller is done or gone, and the
            ParallelOptions in JSON.
    """
    folder, alive_fd = Path(arguments[0]), int(arguments[1])
    parallel = msgspec.json.decode(arguments[2], type=ParallelOptions)
    setproctitle("fathom::EngineCore")
    setup_logging()
    limit_openmp_spinning()
    threading.Thread(target=_exit_with_caller, args=(alive_fd, folder), name="caller-watch", daemon=True).start()
    try:
        run_engine_core(folder, parallel)
    except EngineDeadError as error:  # of a worker, and the error says which and why
        logger.error("the engine process ends: %s", error)
        sys.exit(1)
    except Exception:
        logger.exception("the engine process ends on an error")
        sys.exit(1)


def _exit_with_caller(alive_fd: int, folder: Path) -> None:
    """End this process, in the middle of a step if need be, when the caller writes to the pipe, closes it or is gone.

    The parent's id is watched too, since a process that the caller forked may keep the pipe open.
    """
    parent = os.getppid()
    while os.getppid() == parent:
        readable, _, _ = select.select([alive_fd], [], [], _PARENT_CHECK_S)
        if readable:
            break
    remove_socket_folder(folder)
    os._exit(0)
