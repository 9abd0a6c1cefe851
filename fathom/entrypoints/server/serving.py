"""Serving: what every endpoint works with: the engine, the settings, who is let in, and what is under way."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

import fathom
from fathom.entrypoints.server.admission import Admission
from fathom.entrypoints.server.assembly.common import Envelope
from fathom.entrypoints.server.errors import ApiError, bad_request, shutting_down
from fathom.entrypoints.server.heartbeat import Heartbeat
from fathom.entrypoints.server.protocol.common import GenerationRequest
from fathom.entrypoints.server.settings import ServerSettings
from fathom.entrypoints.server.step_log import StepLog
from fathom.entrypoints.server.tracing import Tracing
from fathom.entrypoints.server.under_way import UnderWay
from fathom.frontend.async_engine import AsyncLLM
from fathom.frontend.metrics import PrometheusObserver
from fathom.frontend.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_GOOD_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Serving:
    """One per process that serves.

    draining: set by the first signal; from then on new requests get 503. created: when the server started.
    """

    def __init__(
        self,
        engine: AsyncLLM,
        settings: ServerSettings,
        metrics: PrometheusObserver,
        under_way: UnderWay,
        tracing: Tracing | None = None,
        created: int | None = None,
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self.under_way = under_way
        places = engine.config.scheduler.max_num_seqs or 1
        self.admission = Admission(places, settings.max_queue, settings.max_queue_tokens, under_way)
        self.tracing = tracing
        self.steps = StepLog()
        self.use_engine(engine)
        self.model_names = model_names(settings, engine.config.model.model)
        self.template = settings.template_text()
        self.template_variables = settings.template_variables()
        self.draining = False
        self.created = int(time.time()) if created is None else created
        self.fingerprint = _fingerprint(engine)
        self._active: dict[str, None] = {}  # ids of the engine's requests that are being served
        self._tasks: set[asyncio.Future[None]] = set()  # the loop itself keeps no hold on them

    def use_engine(self, engine: AsyncLLM) -> None:
        """Serve this engine from now on."""
        self.engine = engine
        self.steps.new_engine()
        self.heartbeat = Heartbeat(engine, self.metrics, self.settings.engine_stall_timeout)

    # ---------------------------------------------------------------- what requests ask first

    def check_open(self) -> None:
        """Raise 503 if the server is about to stop, or the engine is gone."""
        if self.draining:
            raise shutting_down()
        self.check_alive()

    def check_alive(self) -> None:
        """Raise 503 if the engine is gone."""
        if self.engine.errored:
            raise ApiError(503, "The engine is gone.", code="engine_dead")

    def check_model(self, name: str | None) -> str:
        """The name under which the model answers.

        Raises:
            ApiError: 404, there is no such model.
        """
        if name is None:
            return self.model_names[0]
        if name not in self.model_names:
            known = ", ".join(self.model_names)
            raise ApiError(
                404, f"There is no model {name!r} here; this server has {known}.", param="model", code="model_not_found"
            )
        return name

    def need_tokenizer(self, parameter: str) -> Tokenizer:
        """The tokenizer; 400 if the model has none."""
        tokenizer: Tokenizer | None = self.engine.tokenizer
        if tokenizer is None:
            raise bad_request(f"{parameter} needs a tokenizer, and this model has none.", parameter)
        return tokenizer

    def envelope(self, prefix: str, http: Request, request: GenerationRequest) -> Envelope:
        """Who an answer is from. Its id is the caller's or a random one; if it is not streamed it has the usage."""
        options = request.stream_options
        if options is not None and not request.stream:
            raise bad_request("stream_options is for requests with stream.", "stream_options")
        if request.request_id is not None and not _GOOD_ID.fullmatch(request.request_id):
            raise bad_request("request_id must be 1 to 128 visible ASCII characters.", "request_id")
        return Envelope(
            id=f"{prefix}{request.request_id or request_id_of(http)}",
            created=int(time.time()),
            model=self.check_model(request.model),
            fingerprint=self.fingerprint,
            include_usage=not request.stream or (options is not None and options.include_usage),
            continuous_usage=options is not None and options.continuous_usage_stats,
        )

    def deadline_of(self, http: Request, request: GenerationRequest) -> float | None:
        """Seconds that a request has: the smallest of what its field, its header and the server say."""
        limits = [request.timeout, self.settings.request_timeout]
        header = http.headers.get("x-request-timeout")
        if header is not None:
            try:
                seconds = float(header)
            except ValueError:
                seconds = 0.0
            if not 0 < seconds < float("inf"):
                raise bad_request("X-Request-Timeout must be a positive number of seconds.", "X-Request-Timeout")
            limits.append(seconds)
        return min((limit for limit in limits if limit), default=None)

    @staticmethod
    def wants_explanation(http: Request, request: GenerationRequest) -> bool:
        """Whether the answer is to say what was done: the field, or the header X-Fathom-Explain: 1."""
        return request.explain or http.headers.get("x-fathom-explain") == "1"

    # ---------------------------------------------------------------- requests under way

    @property
    def num_active(self) -> int:
        """Requests of the engine that this process serves now."""
        return len(self._active)

    @asynccontextmanager
    async def running(self, request_ids: list[str], seconds: float | None) -> AsyncIterator[None]:
        """Keep account of requests while they are served; after `seconds`, if given, they are ended."""
        self._active |= dict.fromkeys(request_ids)
        self.under_way.add(requests=len(request_ids))
        timer = None
        if seconds is not None:
            timer = asyncio.get_running_loop().call_later(seconds, self._end_soon, request_ids, "deadline")
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            self.under_way.add(requests=-len(request_ids))
            for request_id in request_ids:
                self._active.pop(request_id, None)
                self.admission.begun(request_id)

    async def end_all(self, reason: str) -> None:
        """End every request under way; each gets a last output, finish_reason abort, with this reason."""
        for request_id in list(self._active):
            await self.engine.abort(request_id, reason)

    def _end_soon(self, request_ids: list[str], reason: str) -> None:
        for request_id in request_ids:
            logger.info("%s ends: %s", request_id, reason)
            task = asyncio.ensure_future(self.engine.abort(request_id, reason))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


def model_names(settings: ServerSettings, model: str) -> list[str]:
    """The names under which clients know the model; answers carry the first."""
    return list(settings.served_model_name) or [model]


def request_id_of(http: Request) -> str:
    """The id that the client gave in X-Request-Id, or a random one; the same for the whole request."""
    found = http.scope.get("fathom.request_id")
    if found is None:
        given = http.headers.get("x-request-id", "")
        found = given if _GOOD_ID.fullmatch(given) else uuid.uuid4().hex
        http.scope["fathom.request_id"] = found
    return str(found)


def _fingerprint(engine: AsyncLLM) -> str:
    """Changes with the version and with everything that the engine runs with."""
    digest = hashlib.sha256(repr(engine.config).encode()).hexdigest()
    return f"fathom-{fathom.__version__}-{digest[:8]}"
