"""Traces: one OpenTelemetry span for each request to the model, sent to a collector by OTLP over HTTP.

    client's span (traceparent) -> "llm_request"  from the request's head to the last byte of its answer

A span carries numbers and names, never prompts or answers. Attributes have OpenTelemetry's names for generative AI and,
where that has none, vLLM's. The SDK (the extra `otel`) is imported only if there is an endpoint to send to.
"""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

import fathom
from fathom.errors import ConfigError
from fathom.frontend.stats import EngineObserver
from fathom.sampling_params import SamplingParams

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from fathom.entrypoints.server.errors import ApiError
    from fathom.frontend.output_processor import RequestState

OPERATIONS = {
    "/v1/completions": "text_completion",
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
}
"""Paths whose requests are traced, and what OpenTelemetry calls what they do."""
_EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
_PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_LAST_SPANS_S = 2.0
"""How long the spans of the last seconds have to reach the collector when the server ends."""


class Tracing(EngineObserver):
    """Makes spans and sends them, in batches and from a thread of its own, to the collector.

    Args:
        endpoint: where the collector takes traces; a URL without a path gets /v1/traces.
        model: the name under which answers are given.
    """

    def __init__(self, endpoint: str, model: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create()  # as OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "fathom", SERVICE_VERSION: fathom.__version__}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(traces_url(endpoint))))
        self._tracer = self._provider.get_tracer("fathom", fathom.__version__)
        self._model = model
        self._followed: dict[str, RequestTrace] = {}

    def begin(self, scope: Scope) -> RequestTrace:
        """The span of a request, as part of the trace that its headers name, if they do."""
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        span = self._tracer.start_span(
            "llm_request",
            context=extract(headers),
            kind=SpanKind.SERVER,
            attributes={
                "gen_ai.operation.name": OPERATIONS[scope["path"]],
                "gen_ai.provider.name": "fathom",
                "gen_ai.response.model": self._model,
                "http.route": scope["path"],
            },
        )
        return RequestTrace(span, self._followed)

    def finished(self, state: RequestState) -> None:
        """An answer has ended; its span gets what is known about it."""
        trace = self._followed.get(state.request.request_id)
        if trace is not None:
            trace.answered(state)

    def close(self) -> None:
        """Send what is left, for a moment: a collector that is gone holds nobody up."""
        last = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(_LAST_SPANS_S)


class RequestTrace:
    """The span of one request, and what is gathered for it until it ends."""

    def __init__(self, span: Span, followed: dict[str, RequestTrace]) -> None:
        self.status = 0  # of the HTTP answer; 0: it was never begun
        self._span = span
        self._followed = followed
        self._answers: list[RequestState] = []
        self._ended_at = 0.0
        self._error: ApiError | None = None

    def follow(self, name: str, request_ids: list[str], params: list[SamplingParams]) -> None:
        """Requests are about to be handed to the engine for it.

        Args:
            name: the id that the client knows. params: of each prompt; they differ in max_tokens at most.
        """
        self._followed |= dict.fromkeys(request_ids, self)
        self._span.set_attributes({"gen_ai.request.id": name, "gen_ai.response.id": name} | _request(params[0]))

    def forget(self, request_ids: list[str]) -> None:
        """Nothing more is to come from these."""
        for request_id in request_ids:
            self._followed.pop(request_id, None)

    def answered(self, state: RequestState) -> None:
        """One of the answers has ended."""
        self._answers.append(state)
        self._ended_at = time.time()

    def failed(self, error: ApiError) -> None:
        """The request got an error, as its answer or within its stream."""
        self._error = error

    def end(self) -> None:
        """Nothing more is sent to the client."""
        from opentelemetry.trace import Status, StatusCode

        span = self._span
        if self.status:
            span.set_attribute("http.response.status_code", self.status)
        if self._answers:
            span.set_attributes(_usage(self._answers) | _latencies(self._answers, self._ended_at))
        error = self._error
        status = self.status if error is None else error.status
        if status >= 400:
            span.set_attribute("error.type", (error and error.body.error.code) or str(status))
        if status >= 500:  # what is the client's fault is no error of a server's span
            span.set_status(Status(StatusCode.ERROR, None if error is None else error.body.error.message))
        span.end()


class TracedRequests:
    """Surrounds the application: every request to the model has a span while it is served."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in OPERATIONS:
            await self._app(scope, receive, send)
            return
        trace = scope["fathom.trace"] = self._tracing.begin(scope)

        async def send_and_look(message: Message) -> None:
            if message["type"] == "http.response.start":
                trace.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_look)
        finally:
            trace.end()


def trace_of(scope: Scope) -> RequestTrace | None:
    """The span of a request; None if it has none."""
    trace: RequestTrace | None = scope.get("fathom.trace")
    return trace


def traces_url(endpoint: str) -> str:
    """Where traces are sent: the endpoint as it is or, if it names a host only, its /v1/traces."""
    return endpoint if urlsplit(endpoint).path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces"


def check_endpoint(endpoint: str) -> None:
    """See, before anything is started, that traces can be sent to an endpoint.

    Raises:
        ConfigError: it is no URL of HTTP, another protocol is asked for, or the extra is not installed.
    """
    where = urlsplit(endpoint)
    if where.scheme not in ("http", "https") or not where.hostname:
        raise ConfigError(
            f"otlp_traces_endpoint must be a URL of HTTP, got {endpoint!r}.",
            parameter="otlp_traces_endpoint",
            value=endpoint,
            hint="Traces are sent by OTLP over HTTP, which collectors take at port 4318: http://HOST:4318/v1/traces.",
        )
    protocols = [value for name in _PROTOCOL_VARIABLES if (value := os.environ.get(name))]
    if protocols and protocols[0] != "http/protobuf":
        raise ConfigError(
            f"the OTLP protocol {protocols[0]!r} is not supported.",
            parameter="otlp_traces_endpoint",
            value=protocols[0],
            hint=f"Leave {' and '.join(_PROTOCOL_VARIABLES)} out, or set them to http/protobuf.",
        )
    if not _installed():
        raise ConfigError(
            "otlp_traces_endpoint needs OpenTelemetry's packages.",
            parameter="otlp_traces_endpoint",
            value=endpoint,
            hint="Install them with: pip install 'fathom-llm[otel]'.",
        )


def _installed() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.sdk.trace") is not None and (
            importlib.util.find_spec(_EXPORTER) is not None
        )
    except ModuleNotFoundError:
        return False


def _request(params: SamplingParams) -> dict[str, Any]:
    """What was asked for; OpenTelemetry's names, and vLLM's gen_ai.request.n."""
    attributes: dict[str, Any] = {
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k,
        "gen_ai.request.frequency_penalty": params.frequency_penalty,
        "gen_ai.request.presence_penalty": params.presence_penalty,
        "gen_ai.request.n": params.n,
        "gen_ai.request.choice.count": params.n,
    }
    if params.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = params.max_tokens
    if params.seed is not None:
        attributes["gen_ai.request.seed"] = params.seed
    if params.stop:
        attributes["gen_ai.request.stop_sequences"] = [params.stop] if isinstance(params.stop, str) else params.stop
    return attributes


def _usage(answers: list[RequestState]) -> dict[str, Any]:
    """Tokens, each prompt's once, and why each answer ended."""
    prompts = {state.request.request_id: state for state in answers}.values()
    num_prompt = sum(len(state.request.prompt_token_ids) for state in prompts)
    num_generated = sum(len(state.token_ids) for state in answers)
    in_order = sorted(answers, key=lambda state: (state.request.request_id, state.index))
    return {
        "gen_ai.usage.input_tokens": num_prompt,
        "gen_ai.usage.prompt_tokens": num_prompt,
        "gen_ai.usage.output_tokens": num_generated,
        "gen_ai.usage.completion_tokens": num_generated,
        "gen_ai.usage.cache_read.input_tokens": sum(state.num_cached_tokens for state in prompts),
        "gen_ai.usage.num_sequences": len(answers),
        "gen_ai.response.finish_reasons": [str(state.finish_reason) for state in in_order],
    }


def _latencies(answers: list[RequestState], ended_at: float) -> dict[str, float]:
    """Seconds, as far as the request came; of several answers from the first beginning to the last end.

    Time in the queue and in prefill add up to the time to the first token, prefill and decode to inference.
    """
    metrics = [state.metrics for state in answers]
    arrived = min(times.arrival_time for times in metrics)
    scheduled = min((times.scheduled_time for times in metrics if times.scheduled_time), default=0.0)
    first = min((times.first_token_time for times in metrics if times.first_token_time), default=0.0)
    last = max(times.last_token_time for times in metrics)
    found = {"e2e": ended_at - arrived}
    if scheduled:
        found["time_in_queue"] = scheduled - arrived
    if first:
        found |= {
            "time_to_first_token": first - arrived,
            "time_in_model_prefill": first - scheduled,
            "time_in_model_decode": last - first,
            "time_in_model_inference": last - scheduled,
        }
    return {f"gen_ai.latency.{name}": max(0.0, seconds) for name, seconds in found.items()}
