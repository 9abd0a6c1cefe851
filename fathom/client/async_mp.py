"""AsyncMPClient: the engine in a process of its own, for a caller that runs an asyncio loop."""

from __future__ import annotations

import asyncio
from typing import Any

import zmq.asyncio

from fathom.client.base import AsyncEngineCoreClient, raise_remote
from fathom.client.launch import EngineProcess
from fathom.errors import EngineDeadError
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

_ALIVE_CHECK_S = 0.5


class AsyncMPClient(AsyncEngineCoreClient):
    """Talks to an EngineProcess that has been launched; owns it from now on.

    One task reads the output socket and sorts outputs and replies; another waits for the process's end. Both
    start with `wait_ready`, on the loop that awaits it.
    """

    def __init__(self, setup: EngineSetup, engine: EngineProcess, timeout_s: float) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._decoder: Decoder[EngineCoreOutputs | UtilityReply] = Decoder(EngineCoreOutputs | UtilityReply)
        self._outputs: asyncio.Queue[EngineCoreOutputs | EngineDeadError] = asyncio.Queue()
        self._replies: dict[int, asyncio.Future[UtilityReply]] = {}
        self._last_call_id = 0
        self._tasks: list[asyncio.Task[None]] = []
        engine.start(setup, timeout_s)

    async def wait_ready(self) -> EngineReady:
        ready = await asyncio.to_thread(self._engine.wait_ready, self._timeout_s)
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._watch())]
        return ready

    async def add_requests(self, message: AddRequests) -> None:
        self._engine.send(message)

    async def abort_requests(self, request_ids: list[str]) -> None:
        self._engine.send(AbortRequests(request_ids))

    async def get_outputs(self) -> EngineCoreOutputs:
        outputs = await self._outputs.get()
        if isinstance(outputs, EngineDeadError):
            self._outputs.put_nowait(outputs)  # for whoever asks next
            raise outputs
        return outputs

    async def call(self, method: str, *args: Any) -> Any:
        self._last_call_id += 1
        call_id = self._last_call_id
        reply_future: asyncio.Future[UtilityReply] = asyncio.get_running_loop().create_future()
        self._replies[call_id] = reply_future
        try:
            self._engine.send(UtilityCall(call_id, method, list(args)))
            reply = await reply_future
        finally:
            del self._replies[call_id]
        if reply.error is not None:
            raise_remote(reply.error)
        return reply.result

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tell_everybody(EngineDeadError("the engine was shut down"))
        self._engine.close()

    async def _read(self) -> None:
        socket = zmq.asyncio.Socket.from_socket(self._engine.output)
        while True:
            message = self._decoder.decode(await socket.recv_multipart())
            if isinstance(message, EngineCoreOutputs):
                self._outputs.put_nowait(message)
            elif (waiting := self._replies.get(message.call_id)) is not None and not waiting.done():
                waiting.set_result(message)

    async def _watch(self) -> None:
        while self._engine.process.poll() is None:
            await self._process_end()
        self._tell_everybody(self._engine.death())

    async def _process_end(self) -> None:
        """Return when the process has ended; without a pidfd, after a while."""
        if self._engine.pidfd is None:
            await asyncio.sleep(_ALIVE_CHECK_S)
            return
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._engine.pidfd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._engine.pidfd)

    def _tell_everybody(self, error: EngineDeadError) -> None:
        self._outputs.put_nowait(error)
        for waiting in self._replies.values():
            if not waiting.done():
                waiting.set_exception(error)
