"""SyncMPClient: the engine in a process of its own, for a caller that blocks. No threads on this side."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any

import zmq

from fathom.client.base import EngineCoreClient, raise_remote
from fathom.client.launch import EngineProcess
from fathom.wire.codec import Decoder
from fathom.wire.messages import (
    AbortRequests,
    AddRequests,
    EngineCoreOutputs,
    EngineReady,
    EngineSetup,
    UtilityCall,
    UtilityReply,
)
from fathom.wire.sockets import receive

_POLL_MS = 500


class SyncMPClient(EngineCoreClient):
    """Talks to an EngineProcess that has been launched; owns it from now on."""

    def __init__(self, setup: EngineSetup, engine: EngineProcess, timeout_s: float) -> None:
        self._engine = engine
        self._decoder: Decoder[EngineCoreOutputs | UtilityReply] = Decoder(EngineCoreOutputs | UtilityReply)
        self._pending: deque[EngineCoreOutputs] = deque()  # outputs that came while a reply was awaited
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
        self._engine.send(message)

    def abort_requests(self, request_ids: list[str]) -> None:
        self._engine.send(AbortRequests(request_ids))

    def get_outputs(self) -> EngineCoreOutputs:
        if self._pending:
            return self._pending.popleft()
        while True:
            message = self._receive()
            if isinstance(message, EngineCoreOutputs):
                return message  # else the reply to a call that was interrupted

    def call(self, method: str, *args: Any) -> Any:
        self._last_call_id += 1
        self._engine.send(UtilityCall(self._last_call_id, method, list(args)))
        while True:
            message = self._receive()
            if isinstance(message, EngineCoreOutputs):
                self._pending.append(message)
            elif message.call_id == self._last_call_id:
                if message.error is not None:
                    raise_remote(message.error)
                return message.result

    def close(self) -> None:
        self._engine.close()

    def _receive(self) -> EngineCoreOutputs | UtilityReply:
        """The next message; EngineDeadError as soon as the process is gone and its last messages are read."""
        output = self._engine.output
        while True:
            if output.closed:
                raise self._engine.death()
            ready = dict(self._poller.poll(_POLL_MS))
            if output in ready:
                with contextlib.suppress(zmq.Again):  # there was only the rest of an interrupted one
                    return self._decoder.decode(receive(output, zmq.NOBLOCK))
            else:
                self._engine.check_alive()
