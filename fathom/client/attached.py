"""AttachedClient: a front's client. The engine is another process's, which says when it is gone."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from fathom.client.async_link import AsyncLinkClient
from fathom.errors import EngineDeadError
from fathom.wire.codec import Encoder
from fathom.wire.messages import EngineReady
from fathom.wire.sockets import fronts_address, open_socket, send


class AttachedEngine:
    """A front's way to the engine: one socket for both directions.

    Args:
        folder: of the engine's sockets.
        identity: this front's, and nobody else's before or after it.
    """

    def __init__(self, folder: Path, identity: bytes) -> None:
        self._context = zmq.Context()
        self.output = open_socket(self._context, zmq.DEALER, connect=fronts_address(folder), identity=identity)
        self._encoder = Encoder()
        self.on_sent: Callable[[], object] = lambda: None

    def send(self, message: Any) -> None:
        """Send a message; raises EngineDeadError after `close`."""
        if self.output.closed:
            raise EngineDeadError("the engine was shut down")
        send(self.output, self._encoder.encode(message))
        self.on_sent()

    def close(self) -> None:
        """Let go of the engine, which goes on."""
        self._context.destroy(linger=0)


class AttachedClient(AsyncLinkClient):
    """Talks to an engine that is ready."""

    def __init__(self, link: AttachedEngine, ready: EngineReady) -> None:
        super().__init__(link)
        self._ready = ready
        # A socket for both directions has one descriptor: sending may take the notice of what has come meanwhile.
        link.on_sent = lambda: self._loop.call_soon(self._read)
        self._watch()

    async def wait_ready(self) -> EngineReady:
        return self._ready

    def engine_gone(self, why: str) -> None:
        """The engine's process has ended; as told by its owner."""
        self._read(math.inf)
        self._fail(EngineDeadError(why))
