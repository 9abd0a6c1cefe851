"""The parent of a group: it owns the port, the engine and the fronts, and serves nobody itself.

clients -> port -> front 0 -.
                   front 1 --> engine        parent: starts all of these, and is told when one of them ends
                   front 2 -'

a front ends       the engine drops its requests, and a new front takes its place; the others go on
the engine ends    fronts tell their clients; all end with code 1, or once, if asked, there is a new engine
a signal           fronts let requests end; a second one ends them; then all end with code 0
the parent ends    engine and fronts notice, and end
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Coroutine
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fathom.client.async_mp import AsyncMPClient
from fathom.client.launch import EngineProcess
from fathom.config import EngineConfig
from fathom.entrypoints.server.group.channel import (
    Channel,
    EngineGone,
    FrontReady,
    FrontStart,
    Message,
    Stop,
    UseEngine,
)
from fathom.entrypoints.server.group.front import COUNTS, METRICS
from fathom.entrypoints.server.group.shared_counts import SharedCounts, create_counts
from fathom.entrypoints.server.lifecycle import StopSignals, stop_signals
from fathom.entrypoints.server.listening import bind_many, claimed, say_ready
from fathom.entrypoints.server.serving import model_names
from fathom.entrypoints.server.settings import ServerSettings
from fathom.errors import EngineDeadError
from fathom.frontend import boot
from fathom.log import setup_logging
from fathom.processes import exit_words, python_command, signals_held_back
from fathom.wire.sockets import make_socket_folder, remove_socket_folder

logger = logging.getLogger(__name__)

_LAST_WORDS_S = 5.0
"""How long fronts have, beyond what their requests have, to end by themselves."""
_PAUSE_S = 1.0
"""How long the next front waits, if the one before did not live to serve."""


@dataclass(eq=False)
class FrontProcess:
    """A front as its parent sees it. identity: nobody else's, also among those that had its place before."""

    number: int
    identity: bytes
    process: asyncio.subprocess.Process
    channel: Channel
    ready: bool = False

    def kill(self) -> None:
        """End it, if it has not ended."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()


@dataclass(frozen=True)
class FrontEnded:
    """A front's process is gone."""

    front: FrontProcess


@dataclass(frozen=True)
class FrontWanted:
    """A front that has ended is to be replaced now."""

    number: int


@dataclass(frozen=True)
class FrontServes:
    """A front lets clients in."""

    front: FrontProcess


@dataclass(frozen=True)
class ModelKnown:
    """The model is found and the config resolved."""

    prepared: boot.Prepared


@dataclass(frozen=True)
class EngineEnded:
    """The engine is gone. before_ready: what it raised, if it never was ready."""

    why: str
    before_ready: Exception | None = None


Event = FrontEnded | FrontWanted | FrontServes | ModelKnown | UseEngine | EngineEnded | Stop


async def serve_group(config: EngineConfig, settings: ServerSettings) -> int:
    """Serve with several fronts until a signal comes or the engine is gone; the exit code.

    Raises:
        as lifecycle.serve.
    """
    setup_logging()
    with ExitStack() as stack:
        stack.enter_context(claimed(settings))
        listeners = [stack.enter_context(item) for item in bind_many(settings, settings.api_server_count)]
        folder = make_socket_folder()
        stack.callback(remove_socket_folder, folder)
        create_counts(folder / COUNTS, settings.api_server_count)
        (folder / METRICS).mkdir()
        group = Group(config, settings, listeners, folder)
        try:
            return await group.run(stop_signals())
        finally:
            await group.end()


@dataclass
class Group:
    """A group under way. Whatever happens is an event, and one loop handles them in turn."""

    config: EngineConfig
    settings: ServerSettings
    listeners: list[socket.socket]
    folder: Path
    created: int = field(default_factory=lambda: int(time.time()))
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    fronts: dict[int, FrontProcess] = field(default_factory=dict)
    tasks: set[asyncio.Future[None]] = field(default_factory=set)
    prepared: boot.Prepared | None = None
    engine: AsyncMPClient | None = None
    use_engine: UseEngine | None = None
    served: bool = False  # clients have been told that the server is there
    exit_code: int | None = None  # once the fronts are about to end
    num_started: int = 0
    may_restart: bool = False

    async def run(self, signals: StopSignals) -> int:
        """Start everything and handle events until all fronts have ended; the exit code."""
        self.may_restart = self.settings.restart_on_failure
        self._begin(self._pass_on(signals))
        self._begin(self._engine_s_life())
        for number in range(len(self.listeners)):
            await self._start_front(number)
        while (code := await self._handle(await self.events.get())) is None:
            pass
        return code

    async def end(self) -> None:
        """Nothing is left after this."""
        for task in self.tasks:
            task.cancel()
        for front in self.fronts.values():
            front.kill()
            await front.process.wait()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self.engine is not None:
            self.engine.close()

    async def _handle(self, event: Event) -> int | None:
        """Take an event in; the exit code if it was the last one."""
        if isinstance(event, ModelKnown):
            self.prepared = event.prepared
            for front in self.fronts.values():
                self._tell_start(front)
        elif isinstance(event, UseEngine):
            self.use_engine = event
            self._tell_all(event)
        elif isinstance(event, FrontServes):
            event.front.ready = True
            if not self.served and all(front.ready for front in self.fronts.values()):
                self.served = True
                say_ready(self.settings, model_names(self.settings, self.config.model.model), self.listeners[0])
        elif isinstance(event, Stop):
            return self._stop()
        elif isinstance(event, EngineEnded):
            return self._engine_ended(event)
        elif isinstance(event, FrontEnded):
            return self._front_ended(event.front)
        elif self.exit_code is None:
            await self._start_front(event.number)
        return None

    # ---------------------------------------------------------------- how things end

    def _stop(self) -> int | None:
        again = self.exit_code is not None
        self.exit_code = self.exit_code or 0
        if not self.served or self.use_engine is None or not self.fronts:
            return self.exit_code  # nobody is being served
        self._tell_all(Stop())
        self._kill_fronts_after(_LAST_WORDS_S + (0 if again else self.settings.shutdown_timeout))
        return None

    def _engine_ended(self, event: EngineEnded) -> int | None:
        self.use_engine = None
        if event.before_ready is not None:
            raise event.before_ready
        logger.error("the engine is gone: %s", event.why)
        self._tell_all(EngineGone(event.why))
        if self.exit_code is not None:
            return None
        if self.may_restart:
            self.may_restart = False
            self._begin(self._engine_s_life())
            return None
        self.exit_code = 1
        self._kill_fronts_after(_LAST_WORDS_S)
        return None if self.fronts else self.exit_code

    def _front_ended(self, front: FrontProcess) -> int | None:
        del self.fronts[front.number]
        front.channel.close()
        if self.exit_code is not None:
            self.listeners[front.number].close()  # what still waits in its queue is refused
            return None if self.fronts else self.exit_code
        words = exit_words(front.process.returncode)
        if not self.served:
            logger.error("front %d %s before it could serve", front.number, words)
            return 1
        logger.error("front %d %s; its requests are dropped, and another takes its place", front.number, words)
        SharedCounts(self.folder / COUNTS, front.number).clear()
        if self.engine is not None and self.use_engine is not None:
            with contextlib.suppress(EngineDeadError):  # which is an event of its own
                self.engine.front_gone(front.identity)
        self._begin(self._want_front(front.number, 0 if front.ready else _PAUSE_S))
        return None

    def _kill_fronts_after(self, seconds: float) -> None:
        async def kill() -> None:
            await asyncio.sleep(seconds)
            for front in self.fronts.values():
                logger.error("front %d does not end, and is killed", front.number)
                front.kill()

        self._begin(kill())

    # ---------------------------------------------------------------- what is told to fronts

    def _tell_all(self, message: Message) -> None:
        for front in self.fronts.values():
            front.channel.send(message)

    def _tell_start(self, front: FrontProcess) -> None:
        assert self.prepared is not None
        front.channel.send(
            FrontStart(
                number=front.number,
                identity=front.identity,
                folder=str(self.folder),
                settings=self.settings,
                setup=self.prepared.setup,
                model=self.prepared.model.name,
                default_params=self.prepared.default_params,
                created=self.created,
            )
        )

    # ---------------------------------------------------------------- where events come from

    async def _want_front(self, number: int, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        self.events.put_nowait(FrontWanted(number))

    async def _pass_on(self, signals: StopSignals) -> None:
        while True:
            await signals.get()
            self.events.put_nowait(Stop())

    async def _engine_s_life(self) -> None:
        """An engine from its start to its end."""
        try:
            process = EngineProcess(self.config.parallel)
            try:
                if self.prepared is None:
                    prepared = await asyncio.to_thread(boot.prepare, self.config)
                    self.events.put_nowait(ModelKnown(prepared))
                else:
                    prepared = self.prepared
                engine = AsyncMPClient(process)
                await engine.start(prepared.setup, boot.ready_timeout_s(self.config), fronts=True)
                ready = await engine.wait_ready()
            except BaseException:
                process.close()
                raise
        except Exception as error:
            self.events.put_nowait(EngineEnded(str(error), before_ready=error))
            return
        self.engine = engine
        self.events.put_nowait(UseEngine(str(process.folder), ready))
        try:
            await engine.get_outputs()  # none ever come here, but the news of its end does
        except EngineDeadError as error:
            engine.close()
            self.events.put_nowait(EngineEnded(error.message))

    async def _start_front(self, number: int) -> None:
        """Start a front, and tell it what is known already."""
        ours, its = socket.socketpair()
        listener = self.listeners[number]
        handed = (its.fileno(), listener.fileno())
        arguments = [str(item) for item in (number, *handed)]
        command = python_command(f"{__package__}.front", *arguments)
        environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(self.folder / METRICS)}
        with its, signals_held_back():
            process = await asyncio.create_subprocess_exec(
                *command, pass_fds=handed, stdin=asyncio.subprocess.DEVNULL, env=environment
            )
        identity = f"front-{self.num_started}".encode()
        self.num_started += 1
        front = self.fronts[number] = FrontProcess(number, identity, process, await Channel.over(ours))
        self._begin(self._front_s_life(front))
        if self.prepared is not None:
            self._tell_start(front)
        if self.use_engine is not None:
            front.channel.send(self.use_engine)

    async def _front_s_life(self, front: FrontProcess) -> None:
        while isinstance(await front.channel.receive(), FrontReady):
            self.events.put_nowait(FrontServes(front))
        await front.process.wait()
        self.events.put_nowait(FrontEnded(front))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
