"""SyncMPClient: the engine in a process of its own, for a caller that blocks. No threads on this side."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any

import zmq

from fathom.client.base import EngineCoreClient, raise_remote
from fathom.client.interrupts import InterruptsDeferred
from fathom.client.launch import LAST_WORDS_MS, EngineProcess
from fathom.errors import EngineDeadError
from fathom.wire.codec import Decoder
from fathom.wire.messages import (
    AbortRequests,
    AddRequests,
    EngineCoreOutputs,
    EngineFailed,
    EngineReady,
    EngineSetup,
    FromRunningEngine,
    ToEngine,
    UtilityCall,
    UtilityReply,
)
from fathom.wire.sockets import receive

_POLL_MS = 500


class SyncMPClient(EngineCoreClient):
    """Talks to an EngineProcess that has been launched; owns it from now on."""

    def __init__(self, setup: EngineSetup, engine: EngineProcess, timeout_s: float) -> None:
        self._engine = engine
        self._decoder: Decoder[FromRunningEngine] = Decoder(FromRunningEngine)
        self._outputs: deque[EngineCoreOutputs] = deque()  # received and not yet asked for
        self._last_call_id = 0
        self._poller = zmq.Poller()
        self._poller.register(engine.output, zmq.POLLIN)
        if engine.pidfd is not None:
            self._poller.register(engine.pidfd, zmq.POLLIN)
        engine.set_deadline(timeout_s)
        engine.wait_boot_message()
        engine.start(setup)

    def wait_ready(self) -> EngineReady:
        ready = self._engine.wait_boot_message()
        assert isinstance(ready, EngineReady)
        return ready

    def add_requests(self, message: AddRequests) -> None:
        self._send(message)

    def abort_requests(self, request_ids: list[str]) -> None:
        self._send(AbortRequests(request_ids))

    def get_outputs(self) -> EngineCoreOutputs:
        while not self._outputs:
            self._receive()
        return self._outputs.popleft()

    def call(self, method: str, *args: Any) -> Any:
        self._last_call_id += 1
        self._send(UtilityCall(self._last_call_id, method, list(args)))
        # A reply with another number is to a call that was interrupted.
        while (reply := self._receive()) is None or reply.call_id != self._last_call_id:
            pass
        if reply.error is not None:
            raise_remote(reply.error)
        return reply.result

    def close(self) -> None:
        self._engine.close()
        self._outputs.clear()

    def _send(self, message: ToEngine) -> None:
        try:
            self._engine.send(message)
        except EngineDeadError:
            while True:
                self._receive()  # raises the same, once it has read what the engine said last

    def _receive(self) -> UtilityReply | None:
        """Wait for a message or for a while; keeps outputs and returns a reply.

        Raises:
            EngineDeadError: the process is gone and its last messages are read.
        """
        output = self._engine.output
        if output.closed or not self._has_message():
            self._engine.check_alive()
            return None
        with InterruptsDeferred(), contextlib.suppress(zmq.Again):
            message = self._decoder.decode(receive(output, zmq.NOBLOCK))
            if isinstance(message, UtilityReply):
                return message
            if isinstance(message, EngineFailed):
                self._engine.last_words = message.error
            else:
                self._outputs.append(message)
        return None

    def _has_message(self) -> bool:
        """Wait for a message, for the process's end or for a while; whether there is a message."""
        output = self._engine.output
        if output in dict(self._poller.poll(_POLL_MS)):
            return True
        return self._engine.owes_last_words() and bool(output.poll(LAST_WORDS_MS))
