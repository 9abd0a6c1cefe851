"""AsyncMPClient: the engine in a process of its own, for a caller that runs an asyncio loop. No threads, no tasks."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import msgspec
import zmq

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
from fathom.wire.sockets import receive

MOST_DECODED = 16
"""Outputs that wait decoded, at some ten times their size; others wait in the socket."""
_BOOT_POLL_S = 0.01
_ALIVE_CHECK_S = 0.5  # where there is no pidfd


class AsyncMPClient(AsyncEngineCoreClient):
    """Talks to an EngineProcess that has been launched; owns it from now on.

    Once the engine is ready, the loop calls back when its output socket has something and when its process ends.
    """

    def __init__(self, engine: EngineProcess) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._decoder: Decoder[EngineCoreOutputs | UtilityReply] = Decoder(EngineCoreOutputs | UtilityReply)
        self._outputs: asyncio.Queue[EngineCoreOutputs | EngineDeadError] = asyncio.Queue()
        self._replies: dict[int, asyncio.Future[UtilityReply]] = {}
        self._last_call_id = 0
        self._watching = False

    async def start(self, setup: EngineSetup, timeout_s: float) -> None:
        """Tell the engine what to build; errors as in `wait_ready`."""
        self._engine.set_deadline(timeout_s)
        await self._boot_message()
        self._engine.start(setup)

    async def wait_ready(self) -> EngineReady:
        ready = await self._boot_message()
        assert isinstance(ready, EngineReady)
        self._watch()
        return ready

    async def add_requests(self, message: AddRequests) -> None:
        self._engine.send(message)

    async def abort_requests(self, request_ids: list[str]) -> None:
        self._engine.send(AbortRequests(request_ids))

    async def get_outputs(self) -> EngineCoreOutputs:
        if self._outputs.empty():
            self._read()
            if not self._outputs.empty():  # behind the engine: whoever else waits for the loop has a turn first
                await asyncio.sleep(0)
        outputs = await self._outputs.get()
        if isinstance(outputs, EngineDeadError):
            self._outputs.put_nowait(outputs)  # for whoever asks next
            raise outputs
        return outputs

    async def call(self, method: str, *args: Any) -> Any:
        self._last_call_id += 1
        call_id = self._last_call_id
        self._replies[call_id] = self._loop.create_future()
        try:
            self._engine.send(UtilityCall(call_id, method, list(args)))
            reply = await self._replies[call_id]
        finally:
            del self._replies[call_id]
        if reply.error is not None:
            raise_remote(reply.error)
        return reply.result

    def close(self) -> None:
        self._unwatch()
        self._tell_everybody(EngineDeadError("the engine was shut down"))
        self._engine.close()

    # ---------------------------------------------------------------- what the loop calls

    def _watch(self) -> None:
        self._watching = True
        self._loop.add_reader(self._engine.output.FD, self._read)
        self._loop.call_soon(self._read)  # the descriptor tells of changes, not of what is there already
        if self._engine.pidfd is not None:
            self._loop.add_reader(self._engine.pidfd, self._check_alive)
        else:
            self._loop.call_later(_ALIVE_CHECK_S, self._check_alive)

    def _unwatch(self) -> None:
        if self._watching and not self._loop.is_closed():
            self._loop.remove_reader(self._engine.output.FD)
            if self._engine.pidfd is not None:
                self._loop.remove_reader(self._engine.pidfd)
        self._watching = False

    def _read(self, most: float = MOST_DECODED) -> None:
        """Take the messages that are there, until `most` outputs wait; `get_outputs` takes the rest."""
        try:
            while self._watching and self._outputs.qsize() < most:
                message = self._decoder.decode(receive(self._engine.output, zmq.NOBLOCK))
                if isinstance(message, EngineCoreOutputs):
                    self._outputs.put_nowait(message)
                elif (waiting := self._replies.get(message.call_id)) is not None and not waiting.done():
                    waiting.set_result(message)
        except zmq.Again:
            return
        except msgspec.DecodeError as error:
            self._fail(EngineDeadError(f"a message of the engine could not be read: {error}"))
            self._engine.close()

    def _check_alive(self) -> None:
        if not self._watching:
            return
        if self._engine.process.poll() is not None:
            self._read(math.inf)
            self._fail(self._engine.death())
        elif self._engine.pidfd is None:
            self._loop.call_later(_ALIVE_CHECK_S, self._check_alive)

    def _fail(self, error: EngineDeadError) -> None:
        self._unwatch()
        self._tell_everybody(error)

    def _tell_everybody(self, error: EngineDeadError) -> None:
        self._outputs.put_nowait(error)
        for waiting in self._replies.values():
            if not waiting.done():
                waiting.set_exception(error)

    async def _boot_message(self) -> Any:
        """The next message of the boot, without blocking the loop and without a thread that would use the sockets."""
        while (message := self._engine.boot_message()) is None:
            await asyncio.sleep(_BOOT_POLL_S)
        return message
