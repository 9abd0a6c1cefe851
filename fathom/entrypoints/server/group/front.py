"""A front: a process that leads a server's life around an engine that its parent owns.

It takes no signals: its parent tells it to stop, and Ctrl-C or a supervisor's SIGTERM to all processes of the group
would otherwise count twice.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from pathlib import Path
from typing import NoReturn

import uvloop
from setproctitle import setproctitle

from fathom.client.attached import AttachedClient, AttachedEngine
from fathom.entrypoints.server.group.channel import Channel, EngineGone, FrontReady, FrontStart, Stop, UseEngine
from fathom.entrypoints.server.group.shared_counts import SharedCounts
from fathom.entrypoints.server.lifecycle import StopSignals, lead_life
from fathom.entrypoints.server.serving import model_names
from fathom.errors import FathomError
from fathom.frontend import boot
from fathom.frontend.async_engine import AsyncLLM
from fathom.frontend.metrics import PrometheusObserver
from fathom.frontend.stats import EngineObserver
from fathom.frontend.tokenizer.tokenizer import Tokenizer
from fathom.log import setup_logging
from fathom.plugins import load_general_plugins
from fathom.weights.resolve import ResolvedModel
from fathom.wire.sockets import remove_socket_folder

logger = logging.getLogger(__name__)

COUNTS = "counts"
METRICS = "metrics"
"""Of the folder that the fronts share: a file and a folder."""


def main(arguments: list[str]) -> int:
    """The process's entry point: `<number> <descriptor of the channel> <descriptor of the listening socket>`."""
    number, channel, listener = map(int, arguments)
    setproctitle(f"fathom::Front-{number}")
    setup_logging(f"front {number}")
    try:
        return uvloop.run(_serve(socket.socket(fileno=channel), socket.socket(fileno=listener)))
    except FathomError as error:
        logger.error("%s", error)
        return 1


async def _serve(connected: socket.socket, listener: socket.socket) -> int:
    channel = await Channel.over(connected)
    start = await channel.receive()
    if not isinstance(start, FrontStart):
        return 1  # the parent has ended before it knew what to serve
    front = Front(start, channel)
    follow = asyncio.ensure_future(front.follow_parent())
    folder = Path(start.folder)
    names = model_names(start.settings, start.setup.config.model.model)
    counts = SharedCounts(folder / COUNTS, start.number)
    counts.announce()
    metrics = PrometheusObserver(names[0], folder / METRICS, start.number == 0, counts.processes)
    try:
        return await lead_life(
            front.attach,
            start.settings,
            metrics,
            counts,
            listener,
            front.signals,
            lambda: channel.send(FrontReady()),
            created=start.created,
        )
    finally:
        follow.cancel()


class Front:
    """What a front knows of its parent, and of the engine that it may use."""

    def __init__(self, start: FrontStart, channel: Channel) -> None:
        self.signals: StopSignals = asyncio.Queue()
        self._start = start
        self._channel = channel
        self._engines: asyncio.Queue[UseEngine] = asyncio.Queue()
        self._client: AttachedClient | None = None
        self._tokenizer: Tokenizer | None = None
        self._prepared: boot.Prepared | None = None

    async def attach(self, observer: EngineObserver) -> AsyncLLM:
        """The engine that the parent has started, once it is ready; the model's tokenizer is read meanwhile."""
        if self._prepared is None:
            self._prepared = await asyncio.to_thread(self._load)
        use = await self._engines.get()
        link = AttachedEngine(Path(use.folder), self._start.identity)
        self._client = AttachedClient(link, use.ready)
        name = self._start.identity.decode()
        return AsyncLLM(self._prepared, self._client, self._tokenizer, use.ready, observer, name)

    async def follow_parent(self) -> None:
        """Do what the parent says, and end with it."""
        while (message := await self._channel.receive()) is not None:
            if isinstance(message, UseEngine):
                self._engines.put_nowait(message)
            elif isinstance(message, Stop):
                self.signals.put_nowait(signal.SIGTERM)
            elif isinstance(message, EngineGone):
                self._engine_gone(message.why)
        self._end_with_parent()

    def _engine_gone(self, why: str) -> None:
        if not self._engines.empty():  # it was not used yet; there will be another one, or the parent's end
            self._engines.get_nowait()
        elif self._client is not None:
            self._client.engine_gone(why)

    def _load(self) -> boot.Prepared:
        start = self._start
        load_general_plugins()
        model = ResolvedModel(Path(start.setup.model_path), start.setup.model_format, start.model)
        prepared = boot.Prepared(start.setup, model, start.default_params)
        self._tokenizer = boot.load_caller_tokenizer(prepared)
        return prepared

    def _end_with_parent(self) -> NoReturn:
        remove_socket_folder(Path(self._start.folder))
        os._exit(1)
