"""What the parent and a front tell each other, and the pair of sockets that carries it.

parent -> front:  FrontStart (once), then UseEngine | EngineGone | Stop
front  -> parent: FrontReady (once)

The channel is also how each notices the other's end: by kill -9, too, the other side of the pair closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import msgspec

from fathom.entrypoints.server.settings import ServerSettings
from fathom.sampling_params import SamplingParams
from fathom.wire.messages import EngineReady, EngineSetup

_LENGTH_BYTES = 4


class FrontStart(msgspec.Struct, tag="start"):
    """What a front is to be.

    number: its place among the fronts, from 0. identity: by which the engine knows it. folder: of what the fronts
    share. model: the name that the model was asked for by. default_params: of requests that bring none. created: when
    the server started, as time.time().
    """

    number: int
    identity: bytes
    folder: str
    settings: ServerSettings
    setup: EngineSetup
    model: str
    default_params: SamplingParams
    created: int


class UseEngine(msgspec.Struct, tag="engine"):
    """An engine is ready. folder: of its sockets."""

    folder: str
    ready: EngineReady


class EngineGone(msgspec.Struct, tag="gone"):
    """The engine has ended."""

    why: str


class Stop(msgspec.Struct, tag="stop"):
    """The first lets requests end, a second ends them."""


class FrontReady(msgspec.Struct, tag="ready"):
    """Clients are let in."""


Message = FrontStart | UseEngine | EngineGone | Stop | FrontReady


class Channel:
    """Messages over a connected socket, each after its length."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Message)

    @classmethod
    async def over(cls, connected: socket.socket) -> Channel:
        """A channel over a socket, which is the channel's from now on."""
        return cls(*await asyncio.open_unix_connection(sock=connected))

    def send(self, message: Message) -> None:
        """Send, without waiting for it to be read. If the other side is gone, `receive` says so."""
        body = msgspec.msgpack.encode(message)
        self._writer.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)

    async def receive(self) -> Message | None:
        """The next message; None once the other side is gone."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
            message: Message = self._decoder.decode(await self._reader.readexactly(length))
            return message
        return None

    def close(self) -> None:
        """Let the other side know that this one is gone."""
        self._writer.close()
