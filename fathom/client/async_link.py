"""AsyncLinkClient: an engine in another process, for a caller that runs an asyncio loop. No threads, no tasks."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import msgspec
import zmq

from fathom.client.base import AsyncEngineCoreClient, raise_remote
from fathom.errors import EngineDeadError
from fathom.wire.codec import Decoder
from fathom.wire.messages import (
    AbortRequests,
    AddRequests,
    EngineCoreOutputs,
    EngineFailed,
    FromRunningEngine,
    UtilityCall,
    UtilityReply,
)
from fathom.wire.sockets import receive

MOST_DECODED = 16
"""Outputs that wait decoded, at some ten times their size; others wait in the socket."""


class EngineLink(Protocol):
    """What a client needs of its way to the engine. output: the socket that the engine's messages come from."""

    output: Any

    def send(self, message: Any) -> None:
        """Send a message; raises EngineDeadError if the engine is gone."""

    def close(self) -> None:
        """Let go of the engine. May be called twice."""


class AsyncLinkClient(AsyncEngineCoreClient):
    """Sends over a link; the loop calls back when its output socket has something. How it ends is its subclass's."""

    def __init__(self, link: EngineLink) -> None:
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._decoder: Decoder[FromRunningEngine] = Decoder(FromRunningEngine)
        self._outputs: asyncio.Queue[EngineCoreOutputs | EngineDeadError] = asyncio.Queue()
        self._replies: dict[int, asyncio.Future[UtilityReply]] = {}
        self._last_call_id = 0
        self._watching = False

    async def add_requests(self, message: AddRequests) -> None:
        self._send(message)

    async def abort_requests(self, request_ids: list[str]) -> None:
        self._send(AbortRequests(request_ids))

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
            self._send(UtilityCall(call_id, method, list(args)))
            self._loop.call_soon(self._read)  # past outputs that nobody takes just now
            reply = await self._replies[call_id]
        finally:
            del self._replies[call_id]
        if reply.error is not None:
            raise_remote(reply.error)
        return reply.result

    def close(self) -> None:
        self._fail(EngineDeadError("the engine was shut down"))
        self._link.close()

    def _send(self, message: Any) -> None:
        self._link.send(message)

    def _take_last_words(self, message: EngineFailed) -> None:
        """Why the engine says that it ends."""

    def _watch(self) -> None:
        self._watching = True
        self._loop.add_reader(self._link.output.FD, self._read)
        self._loop.call_soon(self._read)  # the descriptor tells of changes, not of what is there already

    def _unwatch(self) -> None:
        if self._watching and not self._loop.is_closed():
            self._loop.remove_reader(self._link.output.FD)
        self._watching = False

    def _read(self, most: float = MOST_DECODED) -> None:
        """Take the messages that are there, until `most` outputs wait; `get_outputs` takes the rest.

        As long as somebody waits for a reply, all are taken.
        """
        try:
            while self._watching and (self._replies or self._outputs.qsize() < most):
                message = self._decoder.decode(receive(self._link.output, zmq.NOBLOCK))
                if isinstance(message, EngineCoreOutputs):
                    self._outputs.put_nowait(message)
                elif isinstance(message, EngineFailed):
                    self._take_last_words(message)
                elif (waiting := self._replies.get(message.call_id)) is not None and not waiting.done():
                    waiting.set_result(message)
        except zmq.Again:
            return
        except msgspec.DecodeError as error:
            self._fail(EngineDeadError(f"a message of the engine could not be read: {error}"))
            self._link.close()

    def _fail(self, error: EngineDeadError) -> None:
        """Everybody who waits, or asks from now on, gets this error."""
        self._unwatch()
        self._outputs.put_nowait(error)
        for waiting in self._replies.values():
            if not waiting.done():
                waiting.set_exception(error)
