"""The life of a server: take the port, start the engine, serve, and end in order, whichever side ends first.

With --api-server-count the same life is led by each of several processes, around one engine: see group/parent.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from fathom.allocator import spare_what_the_start_made
from fathom.config import EngineConfig
from fathom.entrypoints.server.app import create_app
from fathom.entrypoints.server.connection import connections
from fathom.entrypoints.server.listening import BACKLOG, bound, claimed, listen, say_ready
from fathom.entrypoints.server.serving import Serving, model_names
from fathom.entrypoints.server.settings import ServerSettings
from fathom.entrypoints.server.tracing import Tracing
from fathom.entrypoints.server.under_way import OwnCounts, UnderWay
from fathom.frontend.async_engine import AsyncLLM
from fathom.frontend.metrics import PrometheusObserver
from fathom.frontend.stats import EngineObserver, Observers

logger = logging.getLogger(__name__)

StartEngine = Callable[[EngineObserver], Coroutine[Any, Any, AsyncLLM]]
StopSignals = asyncio.Queue[int]
"""What has asked the server to stop: the first lets requests end, a second ends them."""

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
    if settings.api_server_count > 1:
        from fathom.entrypoints.server.group.parent import serve_group

        return await serve_group(config, settings)
    signals = stop_signals()
    names = model_names(settings, config.model.model)
    with claimed(settings), bound(settings) as listener:
        return await lead_life(
            lambda observer: AsyncLLM.start(config, observer),
            settings,
            PrometheusObserver(names[0]),
            OwnCounts(),
            listener,
            signals,
            lambda: say_ready(settings, names, listener),
        )


async def lead_life(
    start_engine: StartEngine,
    settings: ServerSettings,
    metrics: PrometheusObserver,
    under_way: UnderWay,
    listener: socket.socket,
    signals: StopSignals,
    ready: Callable[[], object],
    created: int | None = None,
) -> int:
    """Start an engine and serve it at a socket; the exit code.

    Args:
        start_engine: gives an engine that tells the observer what happens. Called again for a restart.
        ready: is called when clients are let in.
        created: when the server started, as time.time(), if that was not now.
    """
    observers = Observers(metrics)
    engine = await _started(start_engine(observers), signals)
    if engine is None:
        return 0
    try:
        endpoint = settings.otlp_traces_endpoint
        model = model_names(settings, engine.config.model.model)[0]
        tracing = None if endpoint is None else Tracing(endpoint, model)
        serving = Serving(engine, settings, metrics, under_way, tracing, created)
        for observer in (serving.admission, serving.steps, tracing):
            if observer is not None:
                observers.add(observer)
        try:
            return await _run(serving, listener, signals, lambda: start_engine(observers), ready)
        finally:
            if tracing is not None:
                tracing.close()
    finally:
        engine.shutdown()


def stop_signals() -> StopSignals:
    """SIGINT and SIGTERM of this process, from now on."""
    signals: StopSignals = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signals.put_nowait, number)
    return signals


async def _started(start: Coroutine[Any, Any, AsyncLLM], signals: StopSignals) -> AsyncLLM | None:
    """The engine; None if a signal came first, with nothing left behind."""
    task = asyncio.ensure_future(start)
    stop = asyncio.ensure_future(signals.get())
    try:
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        if not stop.done():
            return task.result()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            (await task).shutdown()
        return None
    finally:
        stop.cancel()


async def _run(
    serving: Serving,
    listener: socket.socket,
    signals: StopSignals,
    restart_engine: Callable[[], Coroutine[Any, Any, AsyncLLM]],
    ready: Callable[[], object],
) -> int:
    """Serve until a signal or the engine's death; the exit code."""
    settings = serving.settings
    _let_uvicorn_log()
    server = _Uvicorn(
        uvicorn.Config(
            create_app(serving),
            http=connections(settings.request_read_timeout),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=settings.uvicorn_log_level,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=1,
            timeout_keep_alive=75,
            ssl_certfile=settings.ssl_certfile,
            ssl_keyfile=settings.ssl_keyfile,
            ssl_ca_certs=settings.ssl_ca_certs,
            ssl_cert_reqs=settings.ssl_cert_reqs,
        )
    )
    spare_what_the_start_made()
    listen(listener)  # before anybody is told; who asks at once waits for uvicorn, and is not refused
    served = asyncio.ensure_future(server.serve(sockets=[listener]))
    ready()
    try:
        exit_code = await _until_over(serving, served, signals, restart_engine)
        server.should_exit = True
        await served
        return exit_code
    finally:
        served.cancel()
        serving.engine.shutdown()


def _let_uvicorn_log() -> None:
    """Its lines go where ours go, unless the application has set up logging itself."""
    uvicorn_logger = logging.getLogger("uvicorn")
    if not uvicorn_logger.handlers and not logging.getLogger().handlers:
        uvicorn_logger.handlers = logging.getLogger("fathom").handlers


async def _until_over(
    serving: Serving,
    served: asyncio.Future[None],
    signals: StopSignals,
    restart_engine: Callable[[], Coroutine[Any, Any, AsyncLLM]],
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
        serving.use_engine(await restart_engine())


async def _drain(serving: Serving, signals: StopSignals) -> None:
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
