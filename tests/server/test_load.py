"""Under load: who is turned away, what ends early, clients that go away or read slowly, and metrics that add up."""

from __future__ import annotations

import contextlib
import json
import select
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.client.processes import PATIENCE_S, comes_true
from tests.server.processes import Server
from tests.server.test_chat import model_of

LONG: dict[str, Any] = {"prompt": "The sea", "max_tokens": 10**9, "ignore_eos": True, "temperature": 0}
"""To the end of the context, which is endless."""


@contextlib.contextmanager
def stream(server: Server, **body: Any) -> Iterator[Iterator[str]]:
    """An open stream that has sent something; leaving closes the connection."""
    headers = {"Authorization": server.http.headers.get("Authorization", "")}
    with (
        httpx.Client(base_url=server.url, timeout=PATIENCE_S, headers=headers) as http,
        http.stream("POST", "/v1/completions", json={**body, "stream": True}) as response,
    ):
        assert response.status_code == 200, response.read()
        lines = response.iter_lines()
        next(lines)
        yield lines


def idle(server: Server) -> bool:
    found = server.metrics()
    return found["num_requests_running"] == found["num_requests_waiting"] == found["kv_cache_usage_perc"] == 0


def test_more_than_the_queue_holds_is_turned_away_at_once(guarded: Server) -> None:
    """C65: one runs, two wait, n counts as n; the accepted ones all end well."""
    accepted: list[Any] = []
    with ThreadPoolExecutor(2) as pool, stream(guarded, **LONG):
        body = {"prompt": "A", "max_tokens": 2, "temperature": 0}
        waiting = [pool.submit(guarded.client("one").completions.create, model=model_of(guarded), **body)]
        assert comes_true(lambda: guarded.http.get("/load").json()["server_load"] == 2)
        two = guarded.post("/v1/completions", prompt="B", n=2, max_tokens=2)
        assert two.status_code == 429
        assert int(two.headers["retry-after"]) >= 1
        assert two.json()["error"]["code"] == "queue_full"
        waiting.append(pool.submit(guarded.client("one").completions.create, model=model_of(guarded), **body))
        assert comes_true(lambda: guarded.http.get("/load").json()["server_load"] == 3)
        with pytest.raises(openai.RateLimitError):
            guarded.client("one").completions.create(model=model_of(guarded), **body)
        accepted = waiting
    assert [answer.result().choices[0].finish_reason for answer in accepted] == ["length", "length"]
    assert guarded.post("/v1/completions", prompt="B", n=4, max_tokens=2).status_code == 400
    assert guarded.metrics()['admission_rejections_total{reason="queue_full"}'] >= 2


def test_waiting_prompt_tokens_are_limited_too(guarded: Server) -> None:
    with ThreadPoolExecutor(1) as pool, stream(guarded, **LONG):
        waits = pool.submit(guarded.post, "/v1/completions", prompt=[5] * 2900, max_tokens=1)
        assert comes_true(lambda: guarded.http.get("/load").json()["server_load"] == 2)
        refused = guarded.post("/v1/completions", prompt=[5] * 200, max_tokens=1)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
    assert waits.result().status_code == 200
    assert comes_true(lambda: idle(guarded))
    for _ in range(2):  # those that have begun do not count, and one alone may be longer than the limit
        assert guarded.post("/v1/completions", prompt=[5] * 3100, max_tokens=1).status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_of_those_who_wait_the_lowest_priority_goes_first(guarded: Server, path: str) -> None:
    """Whoever came before it would never let it in: its answer has no end."""
    message = {"messages": [{"role": "user", "content": "A"}]} if "chat" in path else {"prompt": "A"}
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as first:
        first.enter_context(stream(guarded, **LONG, priority=-7))
        waits = send_request(guarded, {**LONG, "priority": 5}, headers="Authorization: Bearer one\r\n")
        assert comes_true(lambda: guarded.http.get("/load").json()["server_load"] == 2)
        urgent = pool.submit(guarded.post, path, **message, max_tokens=2, priority=-5, ignore_eos=True)
        assert comes_true(lambda: guarded.http.get("/load").json()["server_load"] == 3)
        first.close()
        assert urgent.result().json()["choices"][0]["finish_reason"] == "length"
        waits.close()
    assert comes_true(lambda: idle(guarded))


@pytest.mark.parametrize("field", [0.1, 10**6])
def test_of_two_deadlines_the_nearer_one_counts(guarded: Server, field: float) -> None:
    header = {"X-Request-Timeout": str(0.1 if field > 1 else 10**6)}
    with stream(guarded, **LONG):
        answer = guarded.http.post("/v1/completions", json={"prompt": "A", "timeout": field}, headers=header).json()
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("", "abort", "deadline")


@pytest.mark.parametrize("streamed", [False, True])
def test_a_deadline_ends_the_answer_as_it_is(guarded: Server, streamed: bool) -> None:
    """In the middle of an answer, and in the queue; by field and by header."""
    if streamed:
        lines = list(open_lines(guarded, {**LONG, "timeout": 0.2}))
        assert lines[-1] == "data: [DONE]"
        running = json.loads(lines[-2].removeprefix("data: "))["choices"][0]
    else:
        for seconds in (0.2, 1, 5, 25):  # the first that is enough for a token here
            running = guarded.post("/v1/completions", **LONG, timeout=seconds).json()["choices"][0]
            if running["text"]:
                break
        assert running["text"]
    assert (running["finish_reason"], running["stop_reason"]) == ("abort", "deadline")
    with stream(guarded, **LONG):
        queued = guarded.http.post(
            "/v1/completions", json={"prompt": "A", "max_tokens": 2}, headers={"X-Request-Timeout": "0.1"}
        ).json()
    assert (queued["choices"][0]["text"], queued["choices"][0]["finish_reason"]) == ("", "abort")
    bad = guarded.http.post("/v1/completions", json={"prompt": "A"}, headers={"X-Request-Timeout": "soon"})
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "X-Request-Timeout")


def test_a_deadline_is_over_with_its_request(guarded: Server) -> None:
    """What has ended in time is not ended again when its time is up, which is before that of a later one."""
    for number, seconds in enumerate((0.3, 3, 30)):  # the first that is enough for a token here
        in_time = {"prompt": "A", "max_tokens": 1, "timeout": seconds, "request_id": f"in-time-{number}"}
        ended = guarded.post("/v1/completions", **in_time).json()["choices"][0]["finish_reason"]
        if ended == "length":
            break
    assert ended == "length"
    late = guarded.post("/v1/completions", **LONG, timeout=seconds, request_id="late").json()["choices"][0]
    assert (late["finish_reason"], late["stop_reason"]) == ("abort", "deadline")
    told = [line for line in guarded.log.read_text().splitlines() if line.endswith(" ends: deadline")]
    assert "late" in told[-1]
    assert not any(f"in-time-{number}" in line for line in told)


def open_lines(server: Server, body: dict[str, Any]) -> Iterator[str]:
    with server.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        yield from filter(None, response.iter_lines())


def test_clients_that_go_away_free_their_places(server: Server) -> None:
    """C64: streamed and not, n of 2, decoding or not yet begun."""
    before = server.metrics()['request_success_total{finished_reason="abort"}']
    with contextlib.ExitStack() as streams:
        for n in (1, 2):
            streams.enter_context(stream(server, **(LONG | {"temperature": 1, "n": n})))
        sockets = [send_request(server, {**LONG, "prompt": prompt}) for prompt in ("The sea", [7] * 2000)]
        assert comes_true(lambda: server.metrics()["num_requests_running"] == 5)
    for connection in sockets:
        connection.close()
    assert comes_true(lambda: idle(server))
    assert server.metrics()['request_success_total{finished_reason="abort"}'] == before + 5
    assert comes_true(lambda: server.http.get("/load").json()["server_load"] == 0)
    assert "Traceback" not in server.log.read_text()


def send_request(
    server: Server, body: dict[str, Any] | str, path: str = "/v1/completions", headers: str = ""
) -> socket.socket:
    """A connection that has asked and waits for its answer. headers: more of them, each with its line's end."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    content = (body if isinstance(body, str) else json.dumps(body)).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Content-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


def test_a_slow_reader_gets_everything_and_holds_nobody_up(server: Server) -> None:
    connection = send_request(server, {**LONG, "stream": True, "logprobs": 20, "max_tokens": 250})
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    others = [server.post("/v1/completions", prompt="A", max_tokens=4).status_code for _ in range(3)]
    assert others == [200] * 3
    assert comes_true(lambda: server.metrics()["num_requests_running"] == 0)  # the engine has long ended
    received = bytearray()
    while not received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
        part = connection.recv(1 << 16)
        assert part, received[-300:]
        received += part
    connection.close()
    events = [piece for piece in received.split(b"data: ") if piece.startswith(b"{")]
    tokens = [
        token for piece in events for token in json.loads(piece.split(b"\n\n")[0])["choices"][0]["logprobs"]["tokens"]
    ]
    assert len(tokens) == 250


def test_idle_connections_hold_nobody_up_and_leave_nothing(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    process = psutil.Process(server.process.pid)
    assert server.http.get("/health").status_code == 200
    before = process.num_fds()
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection((host, int(port))))
        assert server.post("/v1/completions", prompt="A", max_tokens=2).status_code == 200
        assert comes_true(lambda: process.num_fds() >= before + 300)
    assert comes_true(lambda: process.num_fds() <= before)


def test_metrics_add_up(server: Server) -> None:
    """C85: counters are the sums of usage, by reason; gauges are 0 in the end."""
    before = server.metrics()
    bodies: list[dict[str, Any]] = [
        {"prompt": "The sea", "max_tokens": 5, "temperature": 0, "ignore_eos": True},
        {"prompt": ["A", "BB"], "n": 2, "max_tokens": 4, "temperature": 1, "seed": 1, "ignore_eos": True},
        {"prompt": "The sea", "max_tokens": 30, "temperature": 0, "stop": ["e", "a", "t", "s"]},
        {"prompt": "The sea", "max_tokens": 300, "temperature": 1, "seed": 2, "n": 3, "stop": ["e", "a", "t", "s"]},
        {"prompt": "The sea", "max_tokens": -5},
    ]
    with ThreadPoolExecutor(4) as pool:
        answers = [answer.json() for answer in pool.map(lambda body: server.post("/v1/completions", **body), bodies)]
    usages = [answer["usage"] for answer in answers if "usage" in answer]
    reasons = [choice["finish_reason"] for answer in answers for choice in answer.get("choices", ())]
    after = server.metrics()

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert len(usages) == 4
    assert grown("prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in usages)
    assert grown("generation_tokens_total") == sum(usage["completion_tokens"] for usage in usages)
    for reason in ("stop", "length", "abort", "error"):
        assert grown(f'request_success_total{{finished_reason="{reason}"}}') == reasons.count(reason)
    assert grown("time_to_first_token_seconds_count") == len(reasons)
    assert grown("e2e_request_latency_seconds_count") == len(reasons)
    assert grown("inter_token_latency_seconds_count") <= grown("generation_tokens_total") - len(reasons)
    assert grown("request_generation_tokens_sum") == grown("generation_tokens_total")
    assert comes_true(lambda: idle(server))
    assert after['http_requests_total{path="/v1/completions",status="400"}'] >= 1
    with stream(server, **LONG):
        pass  # hangs up
    aborted = 'request_success_total{finished_reason="abort"}'
    assert comes_true(lambda: server.metrics()[aborted] == before.get(aborted, 0) + 1)
    after = server.metrics()
    assert grown("request_generation_tokens_sum") == grown("generation_tokens_total")


@pytest.mark.parametrize("as_chat", [False, True])
def test_long_prompts_do_not_hold_up_the_loop(server: Server, as_chat: bool) -> None:
    """A body of three million characters is tokenised beside the loop: others are answered meanwhile, several times.

    If this process does not get to run it may miss that; so it may try again.
    """
    text = "The sea is wide. " * 180_000
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}]} if as_chat else {"prompt": text}
    content = json.dumps(body)

    def others_answered() -> int:
        connection, answered = send_request(server, content, "/tokenize"), 0
        with connection:
            while not select.select([connection], [], [], 0)[0]:
                answered += server.http.get("/version").status_code == 200
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        return answered

    assert any(others_answered() >= 5 for _ in range(30))
