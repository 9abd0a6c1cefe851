"""How the server is: /health, /ping, /load, /version, /metrics; and, if enabled, what an administrator may do."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

import fathom
from fathom.entrypoints.server.errors import ApiError, shutting_down
from fathom.entrypoints.server.http import json_response
from fathom.entrypoints.server.protocol.other import LoadAnswer, StatusAnswer, VersionAnswer
from fathom.entrypoints.server.serving import Serving


async def health(serving: Serving, http: Request) -> Response:
    """200 if the engine is up, answers, and the server takes requests; else 503 with the reason."""
    if serving.draining:
        raise shutting_down()
    if serving.engine.errored:
        raise ApiError(503, "The engine is gone.", code="engine_dead")
    if serving.heartbeat.stalled:
        seconds = serving.heartbeat.silence_s
        raise ApiError(503, f"The engine has not answered for {seconds:.1f} s.", code="engine_stalled")
    return json_response(StatusAnswer("ok"))


async def load(serving: Serving, http: Request) -> Response:
    """How much is under way."""
    stats = await serving.heartbeat.fresh()
    return json_response(
        LoadAnswer(
            server_load=serving.under_way.requests,
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            kv_cache_usage=stats.kv_cache_usage,
        )
    )


async def version(serving: Serving, http: Request) -> Response:
    """Fathom's version."""
    return json_response(VersionAnswer(fathom.__version__))


async def metrics(serving: Serving, http: Request) -> Response:
    """Prometheus metrics, with the engine's numbers of this moment."""
    await serving.heartbeat.fresh()
    return Response(serving.metrics.text(), media_type="text/plain; version=0.0.4")


# ---------------------------------------------------------------- only with --enable-admin


async def reset_prefix_cache(serving: Serving, http: Request) -> Response:
    """Forget all cached prefixes."""
    await serving.engine.reset_prefix_cache()
    return json_response(StatusAnswer("ok"))


async def start_profile(serving: Serving, http: Request) -> Response:
    """Record every step from now on."""
    if await serving.engine.is_profiling():
        raise ApiError(409, "A profile is being recorded; end it with /stop_profile.", code="profile_active")
    await serving.engine.start_profile(serving.settings.profile_folder)
    return json_response(StatusAnswer("recording"))


async def stop_profile(serving: Serving, http: Request) -> Response:
    """Write the traces."""
    if not await serving.engine.is_profiling():
        raise ApiError(409, "No profile is being recorded; begin one with /start_profile.", code="profile_inactive")
    return json_response(StatusAnswer("written", files=await serving.engine.stop_profile()))
