"""Traces as a collector gets them: one span for each request to the model, whatever becomes of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.client.processes import PATIENCE_S, comes_true
from tests.server.collector import Collector
from tests.server.conftest import POOL
from tests.server.processes import Server
from tests.server.test_load import LONG, stream

FAST = {
    "OTEL_BSP_SCHEDULE_DELAY": "100",
    "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    started = Collector()
    yield started
    started.close()


@pytest.fixture(scope="module")
def traced(tiny_chat_model: Path, tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Server]:
    flags = [
        "--served-model-name=tiny",
        POOL,
        f"--otlp-traces-endpoint={collector.url}",
        "--max-num-seqs=2",
        "--max-queue=2",
    ]
    tmp = tmp_path_factory.mktemp("traced")
    started = Server(tiny_chat_model, tmp, *flags, "--log-requests", env=FAST)
    yield started
    assert started.stop() == 0
    assert collector.paths == {"/v1/traces"}
    assert "opentelemetry" not in started.log.read_text()


def milliseconds(span: Span) -> float:
    return float(span.end_time_unix_nano - span.start_time_unix_nano) / 1e6


@pytest.mark.parametrize("streamed", [False, True])
def test_a_request_is_a_span_of_the_caller_s_trace(traced: Server, collector: Collector, streamed: bool) -> None:
    """Its id is the one in the headers, in the answer and in the log."""
    name = f"whole-{streamed}"
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": name}
    body = {"prompt": [5] * 20, "max_tokens": 6, "ignore_eos": True, "temperature": 0.5, "top_p": 0.9, "top_k": 7}
    body |= {"seed": 3, "stop": ["\x01"], "presence_penalty": 0.25, "stream": streamed}
    answer = traced.http.post("/v1/completions", json=body, headers=headers)
    assert answer.headers["X-Request-Id"] == name
    span, attributes = collector.of(f"cmpl-{name}")
    assert (span.name, span.kind, span.status.code) == ("llm_request", Span.SPAN_KIND_SERVER, Status.STATUS_CODE_UNSET)
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    latencies = {key: value for key, value in attributes.items() if key.startswith("gen_ai.latency.")}
    assert {key: value for key, value in attributes.items() if key not in latencies} == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "fathom",
        "gen_ai.response.model": "tiny",
        "gen_ai.request.id": f"cmpl-{name}",
        "gen_ai.response.id": f"cmpl-{name}",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 7,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.25,
        "gen_ai.request.n": 1,
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.max_tokens": 6,
        "gen_ai.request.seed": 3,
        "gen_ai.request.stop_sequences": ["\x01"],
        "gen_ai.usage.input_tokens": 20,
        "gen_ai.usage.prompt_tokens": 20,
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.usage.completion_tokens": 6,
        "gen_ai.usage.cache_read.input_tokens": 16 if streamed else 0,
        "gen_ai.usage.num_sequences": 1,
        "gen_ai.response.finish_reasons": ["length"],
        "http.route": "/v1/completions",
        "http.response.status_code": 200,
    }
    seconds = {key.removeprefix("gen_ai.latency."): value for key, value in latencies.items()}
    assert seconds["time_in_queue"] + seconds["time_in_model_prefill"] == pytest.approx(seconds["time_to_first_token"])
    assert seconds["time_in_model_prefill"] + seconds["time_in_model_decode"] == pytest.approx(
        seconds["time_in_model_inference"]
    )
    assert 0 < seconds["time_to_first_token"] < seconds["e2e"] < milliseconds(span) / 1000
    resource = next(resource for found, _, resource in collector.spans if found.span_id == span.span_id)
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("fathom", "test")
    assert f"cmpl-{name} done in" in traced.log.read_text()


def test_several_answers_are_one_span(traced: Server, collector: Collector) -> None:
    body = {"prompt": [[9] * 4, [8] * 5], "n": 2, "max_tokens": 3, "ignore_eos": True, "request_id": "several"}
    usage = traced.post("/v1/completions", **body).json()["usage"]
    span, attributes = collector.of("cmpl-several")
    assert span.parent_span_id == b""
    assert attributes["gen_ai.usage.prompt_tokens"] == usage["prompt_tokens"] == 9
    assert attributes["gen_ai.usage.completion_tokens"] == usage["completion_tokens"] == 12
    assert attributes["gen_ai.usage.num_sequences"] == 4
    assert attributes["gen_ai.response.finish_reasons"] == ["length"] * 4


@pytest.mark.parametrize(
    ("path", "prefix", "fields"),
    [
        ("/v1/chat/completions", "chatcmpl-", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/responses", "resp_", {"input": "Hi"}),
        ("/v1/messages", "msg_", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "model": "tiny"}),
    ],
)
def test_every_way_to_ask_has_its_span(
    traced: Server, collector: Collector, path: str, prefix: str, fields: dict[str, Any]
) -> None:
    limit = {"/v1/chat/completions": "max_tokens", "/v1/responses": "max_output_tokens"}.get(path)
    answer = traced.http.post(path, json=fields | ({limit: 16} if limit else {}), headers={"X-Request-Id": "way"})
    assert answer.status_code == 200, answer.text
    _, attributes = collector.of(f"{prefix}way")
    assert (attributes["gen_ai.operation.name"], attributes["http.route"]) == ("chat", path)


def test_requests_that_end_early(traced: Server, collector: Collector) -> None:
    """The client goes away from a stream; a deadline passes, in the queue."""
    with stream(traced, **LONG, request_id="gone"), stream(traced, **LONG, request_id="gone-too"):
        traced.post("/v1/completions", prompt="A", max_tokens=2, timeout=0.1, request_id="late")
    for name in ("gone", "gone-too"):
        span, attributes = collector.of(f"cmpl-{name}")
        assert attributes["gen_ai.response.finish_reasons"] == ["abort"]
        assert attributes["gen_ai.usage.completion_tokens"] > 0
        assert span.status.code == Status.STATUS_CODE_UNSET
    _, attributes = collector.of("cmpl-late")
    assert (attributes["http.response.status_code"], attributes["gen_ai.usage.completion_tokens"]) == (200, 0)
    assert "gen_ai.latency.time_to_first_token" not in attributes
    assert attributes["gen_ai.latency.e2e"] > 0.05


def test_what_is_wrong_with_a_request_is_its_error_type(traced: Server, collector: Collector) -> None:
    """A client's mistake is no error of the server's span; refused before its parameters are known, or after."""

    def refused() -> list[tuple[Any, dict[str, Any]]]:
        return [(span, found) for span, found, _ in collector.spans if "error.type" in found]

    before = len(refused())
    assert traced.post("/v1/completions", prompt="A", nonsense=1).status_code == 400
    assert traced.post("/v1/completions", prompt="A", n=5).status_code == 400
    assert traced.http.get("/v1/completions").status_code == 405
    assert traced.http.get("/v1/models").status_code == 200
    assert comes_true(lambda: len(refused()) >= before + 2)
    assert [(found["error.type"], found["http.response.status_code"]) for _, found in refused()[before:]] == [
        ("unknown_parameter", 400),
        ("400", 400),
    ]
    assert {span.status.code for span, _ in refused()[before:]} == {Status.STATUS_CODE_UNSET}


def test_failures_are_errors_of_the_span(tiny_chat_model: Path, tmp_path: Path, collector: Collector) -> None:
    """An engine that dies: in the middle of a stream, whose status was 200, and before the answer's head."""
    server = Server(tiny_chat_model, tmp_path, POOL, f"--otlp-traces-endpoint={collector.url}/v1/traces", env=FAST)
    with stream(server, **LONG, request_id="broken") as lines:
        server.engine().kill()
        list(lines)
        with contextlib.suppress(httpx.TransportError), httpx.Client(base_url=server.url) as http:
            http.post("/v1/completions", json={"prompt": "A"}, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    assert server.wait() == 1
    span, attributes = collector.of("cmpl-broken")
    assert (span.status.code, attributes["error.type"]) == (Status.STATUS_CODE_ERROR, "engine_dead")
    assert attributes["http.response.status_code"] == 200
    assert "engine is gone" in span.status.message
    server.http.close()


@pytest.mark.parametrize(
    ("endpoint", "env", "words"),
    [
        ("grpc://localhost:4317", {}, "4318"),
        ("http://localhost:4318", {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http/protobuf"),
        ("http://localhost:4318", {"PYTHONPATH": "{without}"}, "pip install 'fathom-llm[otel]'"),
    ],
)
def test_what_cannot_be_sent_is_refused_at_once(
    tiny_chat_model: Path, tmp_path: Path, endpoint: str, env: dict[str, str], words: str
) -> None:
    without = tmp_path / "opentelemetry"
    without.mkdir()
    (without / "__init__.py").touch()
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "fathom", "serve", str(tiny_chat_model), f"--otlp-traces-endpoint={endpoint}"]
    env = {name: value.format(without=paths) for name, value in env.items()}
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env={**os.environ, **env})
    assert (run.returncode, run.stdout) == (1, "")
    assert words in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_without_the_flag_nothing_is_imported(tiny_chat_model: Path) -> None:
    code = "import fathom.entrypoints.server.app, fathom.entrypoints.server.lifecycle, sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert not [name for name in run.stdout.split() if name.startswith("opentelemetry")]
