"""The life of a server: take the port, start the engine, serve, and end in order, whichever side ends first."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from fathom.config import EngineConfig
from fathom.entrypoints.server.admission import Admission
from fathom.entrypoints.server.app import create_app
from fathom.entrypoints.server.connection import Connection
from fathom.entrypoints.server.serving import Serving, model_names
from fathom.entrypoints.server.settings import ServerSettings
from fathom.errors import ConfigError
from fathom.frontend.async_engine import AsyncLLM
from fathom.frontend.metrics import PrometheusObserver
from fathom.frontend.stats import Observers

logger = logging.getLogger(__name__)

StartEngine = Callable[[], Coroutine[Any, Any, AsyncLLM]]

_BACKLOG = 4096
_LAST_CHUNKS_S = 1.0
"""How long answers that were ended have to get their last chunk out."""


class _Uvicorn(uvicorn.Server):
    """Leaves signals to us: the first one lets requests end, and only then the server."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(config: EngineConfig, settings: ServerSettings) -> int:
    """Serve until a signal comes or the engine is gone; the exit code, 0 for a signal and 1 for the engine.

    Raises:
        ConfigError: the port cannot be had, before any weights are read. Whatever AsyncLLM.start raises.
    """
    listener = _listen(settings)
    try:
        metrics = PrometheusObserver(model_names(settings, config.model.model)[0])
        observers = Observers(metrics)
        engine = await _started(AsyncLLM.start(config, observers))
        if engine is None:
            return 0
        try:
            max_running = engine.config.scheduler.max_num_seqs or 1
            admission = Admission(max_running, settings.max_queue, settings.max_queue_tokens)
            observers.add(admission)
            serving = Serving(engine, settings, metrics, admission)
            observers.add(serving.steps)
            return await _run(serving, listener, lambda: AsyncLLM.start(config, observers))
        finally:
            engine.shutdown()
    finally:
        listener.close()


async def _started(start: Coroutine[Any, Any, AsyncLLM]) -> AsyncLLM | None:
    """The engine; None if a signal came first, with nothing left behind."""
    task = asyncio.ensure_future(start)
    loop = asyncio.get_running_loop()
    signalled = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signalled.set)
    watch = asyncio.ensure_future(signalled.wait())
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return None
    finally:
        watch.cancel()


async def _run(serving: Serving, listener: socket.socket, start_engine: StartEngine) -> int:
    """Serve until a signal or the engine's death; the exit code."""
    server = _Uvicorn(
        uvicorn.Config(
            create_app(serving),
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=1,
            timeout_keep_alive=75,
        )
    )
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signals.put_nowait, number)
    listener.listen(_BACKLOG)  # before anybody is told; who asks at once waits for uvicorn, and is not refused
    served = asyncio.ensure_future(server.serve(sockets=[listener]))
    _say_ready(serving, listener)
    try:
        exit_code = await _until_over(serving, served, signals, start_engine)
        server.should_exit = True
        await served
        return exit_code
    finally:
        served.cancel()
        serving.engine.shutdown()


async def _until_over(
    serving: Serving, served: asyncio.Future[None], signals: asyncio.Queue[int], start_engine: StartEngine
) -> int:
    """Wait for whatever ends the server, and see to it that open requests end; the exit code."""
    stop = asyncio.ensure_future(signals.get())
    may_restart = serving.settings.restart_on_failure
    while True:
        dead = asyncio.ensure_future(serving.engine.wait_dead())
        heartbeat = asyncio.ensure_future(serving.heartbeat.run())
        try:
            await asyncio.wait((served, dead, stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            heartbeat.cancel()
            dead.cancel()
        if stop.done():
            await _drain(serving, signals)
            return 0
        if not serving.engine.errored:
            return 1  # uvicorn has ended, for a reason that it has logged
        logger.error("the engine is gone: %s", await serving.engine.wait_dead())
        if not may_restart:
            serving.draining = True
            await asyncio.sleep(_LAST_CHUNKS_S)  # open streams get their error, and /health says what is wrong
            return 1
        may_restart = False
        serving.engine.shutdown()
        serving.use_engine(await start_engine())


async def _drain(serving: Serving, signals: asyncio.Queue[int]) -> None:
    """Let requests under way end; after the time that they have, or at a second signal, end them."""
    serving.draining = True
    seconds = serving.settings.shutdown_timeout
    logger.info("stopping: %d requests under way have %g s to end", serving.num_active, seconds)
    second = asyncio.ensure_future(signals.get())
    await _wait_idle(serving, seconds, second)
    if serving.num_active and not second.done():
        logger.info("%d requests are ended", serving.num_active)
    with contextlib.suppress(Exception):
        await serving.end_all("shutdown")
    await _wait_idle(serving, _LAST_CHUNKS_S, second)
    second.cancel()


async def _wait_idle(serving: Serving, seconds: float, signalled: asyncio.Future[int]) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while serving.num_active and not signalled.done() and loop.time() < deadline:
        await asyncio.sleep(0.02)


def _listen(settings: ServerSettings) -> socket.socket:
    """A bound socket. It listens once there is something to say.

    Raises:
        ConfigError: the address is not to be had.
    """
    where = f"{settings.host}:{settings.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"{settings.host} is no address of this machine: {error}.", parameter="host") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {settings.port} is in use.",
                parameter="port",
                value=settings.port,
                hint="Stop what uses it, or choose another with --port; 0 picks a free one.",
            ) from None
        raise ConfigError(f"cannot listen at {where}: {error.strerror}.", parameter="host", value=where) from None
    return listener


def _say_ready(serving: Serving, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    print(f"fathom: serving {', '.join(serving.model_names)} at http://{host}:{port}", flush=True)
    if host not in ("127.0.0.1", "[::1]") and not serving.settings.keys:
        logger.warning("anybody who reaches %s:%d may use this server: no --api-key is set", host, port)
