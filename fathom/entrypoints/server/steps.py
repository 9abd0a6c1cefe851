"""GET /engine/steps: the engine's last steps, and with Accept: text/event-stream those to come.

A watcher gets what is new at most 20 times a second; one that reads slowly misses steps and is told how many, and holds
nobody up.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import fathom
from fathom.entrypoints.server.errors import ApiError
from fathom.entrypoints.server.http import Emit, EventStream, event, json_response
from fathom.entrypoints.server.protocol.steps import EngineLimits, EngineState, StepsAnswer
from fathom.entrypoints.server.serving import Serving
from fathom.entrypoints.server.step_log import state_of

MOST_WATCHERS = 32
_PAUSE_S = 0.05
_IDLE_S = 1.0


async def engine_steps(serving: Serving, http: Request) -> Response:
    """The engine's last steps; with `Accept: text/event-stream` those to come, too."""
    if "text/event-stream" not in http.headers.get("accept", ""):
        await serving.heartbeat.fresh()
        steps, skipped = serving.steps.since(0)
        return json_response(StepsAnswer(engine=_limits(serving), state=_state(serving), steps=steps, skipped=skipped))
    if serving.steps.num_watchers >= MOST_WATCHERS:
        raise ApiError(429, f"{MOST_WATCHERS} others watch the engine already.", code="too_many_watchers")
    woken = serving.steps.watch()

    async def close() -> None:
        serving.steps.unwatch(woken)

    return EventStream(partial(_emit_steps, serving, woken), close, end=b"")


async def _emit_steps(serving: Serving, woken: asyncio.Event, emit: Emit) -> None:
    """What is new, as it comes; once a second even if nothing is, since the state changes without a step, too."""
    engine: EngineLimits | None = _limits(serving)
    number = 0
    while not (serving.draining and serving.num_active == 0):
        serving.check_alive()
        woken.clear()
        steps, skipped = serving.steps.since(number)
        number = serving.steps.num_steps
        answer = StepsAnswer(engine=engine, state=_state(serving), steps=steps, skipped=skipped)
        await emit(event(msgspec.json.encode(answer)))
        engine = None
        await asyncio.sleep(_PAUSE_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_IDLE_S):
                await woken.wait()


def _limits(serving: Serving) -> EngineLimits:
    engine = serving.engine
    scheduler = engine.config.scheduler
    return EngineLimits(
        model=serving.model_names[0],
        version=fathom.__version__,
        num_blocks=engine.ready.num_kv_blocks - 1,  # without the null block, which holds nothing
        block_size=engine.ready.block_size,
        kv_cache_bytes=engine.ready.kv_cache_bytes,
        max_model_len=engine.ready.max_model_len,
        max_num_seqs=scheduler.max_num_seqs or 0,
        max_num_batched_tokens=scheduler.max_num_batched_tokens or 0,
    )


def _state(serving: Serving) -> EngineState:
    """How the engine stands: as after its last step, unless it has been asked since."""
    told, asked = serving.steps.latest, serving.heartbeat.stats
    return state_of(asked if told is None or asked.num_steps >= told.num_steps else told)
