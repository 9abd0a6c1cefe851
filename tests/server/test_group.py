"""Several fronts of one engine: any of them is the server, and none gets what is another's."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from fathom.entrypoints.cli.bench.own_server import start_server
from tests.client.processes import comes_true, hold_boots, is_gone, socket_folders, with_plugins_of
from tests.server.conftest import POOL
from tests.server.fronts import client_of, fronts_of, stream_of
from tests.server.processes import Server, Start, starting
from tests.server.test_load import LONG

GREEDY: dict[str, Any] = {"prompt": "The sea", "max_tokens": 12, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def group(tiny_chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    tmp = tmp_path_factory.mktemp("group")
    flags = ["--served-model-name=tiny", "--seed=0", "--api-server-count=2", "--enable-admin", POOL]
    flags += ["--max-num-seqs=4", "--max-queue=2", "--engine-stall-timeout=0.5", f"--profile-folder={tmp}/profile"]
    started = Server(tiny_chat_model, tmp, *flags)
    yield started
    assert started.stop() == 0
    assert not socket_folders(tmp)
    assert "Traceback" not in started.log.read_text()


@pytest.fixture(scope="module")
def clients(group: Server) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """One of each front."""
    first, second = fronts_of(group)
    with client_of(group, first) as one, client_of(group, second) as two:
        yield one, two


@pytest.fixture
def start(tiny_chat_model: Path, tmp_path: Path) -> Iterator[Start]:
    """start(*flags): a group of this test's own, of two."""
    yield from starting(tiny_chat_model, tmp_path, "--api-server-count=2", POOL)


def everything_of(server: Server) -> list[psutil.Process]:
    return [*fronts_of(server), server.engine()]


def nothing_is_left(server: Server, processes: list[psutil.Process]) -> bool:
    return comes_true(lambda: all(map(is_gone, processes)) and not socket_folders(server.tmp))


def sample(client: httpx.Client, name: str) -> float:
    """A metric as this front tells it."""
    lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith(f"fathom:{name}")]
    assert len(lines) == 1, lines
    return float(lines[0].rpartition(" ")[2])


def last_steps(client: httpx.Client, count: int) -> list[dict[str, Any]]:
    """The engine's last steps, as this front has heard of them."""
    return list(client.get("/engine/steps").json()["steps"][-count:])


def finish_of(lines: Iterator[str]) -> Any:
    """The last choice, or the error, of a stream that ends."""
    events = [line.removeprefix("data: ") for line in lines if line]
    assert events[-1] == "[DONE]"
    last = json.loads(events[-2])
    return last["error"] if "error" in last else last["choices"][0]


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/openapi.json", "/"])
def test_any_front_is_the_server(clients: tuple[httpx.Client, httpx.Client], path: str) -> None:
    one, two = (client.get(path) for client in clients)
    assert (one.status_code, one.content) == (200, two.content)


def test_each_gets_its_own_answer(group: Server, server: Server) -> None:
    """OpenAI's client over many connections at once: text and logprobs are those of a server of one process."""
    bodies: list[dict[str, Any]] = [
        {"prompt": f"{name} sea", "max_tokens": 6, "temperature": 0, "logprobs": number % 3, "stream": bool(number % 2)}
        for number, name in enumerate(
            ("The", "A", "My", "No", "Our", "This", "One", "Her", "Its", "Some", "Any", "All")
        )
    ]

    def ask(of: Server, body: dict[str, Any]) -> list[Any]:
        with of.client() as client:
            answer = client.completions.create(model="tiny", extra_body={"ignore_eos": True}, **body)
            chunks = [answer] if isinstance(answer, openai.types.Completion) else list(answer)
        choices = [choice for chunk in chunks for choice in chunk.choices]
        logprobs = [
            (token, round(value, 4))
            for choice in choices
            if choice.logprobs is not None
            for token, value in zip(choice.logprobs.tokens or (), choice.logprobs.token_logprobs or (), strict=True)
        ]
        return ["".join(choice.text for choice in choices), logprobs]

    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda body: ask(group, body), bodies))
    assert together == [ask(server, body) for body in bodies]
    assert all(len(found[1]) == 6 for found, body in zip(together, bodies, strict=True) if body["logprobs"])


def test_metrics_are_sums_and_the_engine_s_are_its_own(
    group: Server, clients: tuple[httpx.Client, httpx.Client]
) -> None:
    one, two = clients
    names = (
        "prompt_tokens_total",
        "generation_tokens_total",
        "prefix_cache_queries_total",
        "iteration_tokens_total_sum",
    )
    before = [sample(one, name) for name in names]
    usages = [client.post("/v1/completions", json=GREEDY).json()["usage"] for client in (one, two, two)]
    prompts, generated = (sum(usage[name] for usage in usages) for name in ("prompt_tokens", "completion_tokens"))
    computed = prompts + generated - len(usages)  # an answer's first token comes with its prompt
    expected = [old + new for old, new in zip(before, (prompts, generated, prompts, computed), strict=True)]
    for client in clients:
        assert comes_true(lambda client=client: [sample(client, name) for name in names] == expected)
    with client_of(group, fronts_of(group)[0]) as client, stream_of(client, **LONG):
        assert comes_true(lambda: [sample(client, "num_requests_running") for client in clients] == [1, 1])
    assert comes_true(lambda: sample(two, "num_requests_running") == sample(two, "kv_cache_usage_perc") == 0)


def test_any_front_tells_of_the_processes_of_all(group: Server, clients: tuple[httpx.Client, httpx.Client]) -> None:
    for client in clients:
        lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith("process_start_time")]
        started = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
        assert list(started) == [f'process_start_time_seconds{{front="{number}"}}' for number in range(2)]
        for seconds, front in zip(started.values(), fronts_of(group), strict=True):
            assert abs(seconds - front.create_time()) < 2


def test_limits_and_load_are_those_of_all(group: Server, clients: tuple[httpx.Client, httpx.Client]) -> None:
    """Four run and two wait, three of them here and three there: no seventh comes in, whomever it asks."""
    one, engine = clients[0], group.engine()
    body = {"prompt": "A", "max_tokens": 2}
    with contextlib.ExitStack() as stack:
        asking = [stack.enter_context(client_of(group, front)) for front in fronts_of(group)]
        pool = stack.enter_context(ThreadPoolExecutor(2))
        engine.suspend()  # so that none ends before we have looked
        stack.callback(engine.resume)
        accepted = [pool.submit(client.post, "/v1/completions", json=body | {"n": 3}) for client in asking]
        assert comes_true(lambda: one.get("/load").json()["server_load"] == 2)
        for client in clients:
            refused = client.post("/v1/completions", json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        engine.resume()
        assert [answer.result().status_code for answer in accepted] == [200, 200]
    for client in clients:
        assert client.post("/v1/completions", json={"prompt": "B", "max_tokens": 1, "n": 6}).status_code == 200
        assert comes_true(lambda client=client: client.get("/load").json()["server_load"] == 0)


def test_what_an_administrator_does_is_done_to_the_one_engine(clients: tuple[httpx.Client, httpx.Client]) -> None:
    one, two = clients
    assert one.post("/start_profile").status_code == 200
    assert two.post("/start_profile").status_code == 409
    (trace,) = two.post("/stop_profile").json()["files"]
    assert Path(trace).stat().st_size > 0
    assert one.post("/stop_profile").status_code == 409
    prompt = {"prompt": [7] * 40, "max_tokens": 1}
    cached = []
    for client in (one, two, two):
        cached.append(client.post("/v1/completions", json=prompt).json()["usage"]["prompt_tokens_details"])
        if client is two:
            assert one.post("/reset_prefix_cache").status_code == 200
    assert [found["cached_tokens"] for found in cached] == [0, 32, 0]


def test_every_step_is_seen_from_any_front(clients: tuple[httpx.Client, httpx.Client]) -> None:
    one, two = clients
    before = len(two.get("/engine/steps").json()["steps"])
    one.post("/v1/completions", json=GREEDY | {"prompt": [3, 5, 9] * 5, "max_tokens": 4})

    def last_four(client: httpx.Client) -> list[tuple[int, int]]:
        return [(step["context_tokens"], step["generation_tokens"]) for step in last_steps(client, 4)]

    for client in clients:
        assert comes_true(lambda client=client: last_four(client) == [(15, 0), (0, 1), (0, 1), (0, 1)])
    assert len(two.get("/engine/steps").json()["steps"]) == min(200, before + 4)


def test_unseeded_answers_differ_between_fronts(clients: tuple[httpx.Client, httpx.Client]) -> None:
    body = {"prompt": "The sea", "max_tokens": 16, "temperature": 2, "ignore_eos": True}
    assert len({client.post("/v1/completions", json=body).json()["choices"][0]["text"] for client in clients * 2}) == 4


def test_a_stalled_engine_makes_every_front_unhealthy(
    group: Server, clients: tuple[httpx.Client, httpx.Client]
) -> None:
    engine = group.engine()
    engine.suspend()
    try:
        assert comes_true(lambda: [client.get("/health").status_code for client in clients] == [503, 503])
    finally:
        engine.resume()
    assert comes_true(lambda: [client.get("/health").status_code for client in clients] == [200, 200])


@pytest.mark.parametrize("fronts", [1, 2])
def test_of_two_that_start_at_once_on_a_port_one_gets_it(tiny_chat_model: Path, fronts: int) -> None:
    held = socket.socket()  # bound as the servers do it, it keeps others off the port, and not them
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        held.setsockopt(socket.SOL_SOCKET, option, 1)
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]
    arguments = [str(tiny_chat_model), f"--port={port}", f"--api-server-count={fronts}", "--num-threads=1"]
    both = [start_server(arguments, stderr=subprocess.PIPE) for _ in range(2)]
    try:
        assert comes_true(lambda: any(process.poll() is not None for process in both)), "both have the port"
        winner, loser = sorted(both, key=lambda process: process.poll() is not None)
        assert loser.returncode == 1
        assert loser.communicate()[1].splitlines() == [
            f"fathom: port {port} is in use. Stop what uses it, or choose another with --port; 0 picks a free one."
        ]
        assert f":{port}" in winner.stdout.readline()
    finally:
        for process in both:
            process.terminate()
            process.communicate()
        held.close()
    assert winner.returncode == 0


def test_several_fronts_of_several_workers(
    group: Server, clients: tuple[httpx.Client, httpx.Client], start: Start
) -> None:
    expected = clients[0].post("/v1/completions", json=GREEDY).json()["choices"]
    server = start("--tensor-parallel-size=2", "--num-threads=2")
    processes = [*everything_of(server), *server.engine().children()]
    for front in fronts_of(server):
        with client_of(server, front) as client:
            assert client.post("/v1/completions", json=GREEDY).json()["choices"] == expected
    assert server.stop() == 0
    assert nothing_is_left(server, processes)


def test_a_signal_to_all_processes_lets_requests_end(start: Start) -> None:
    """As Ctrl-C or a supervisor sends it: the parent's counts; fronts and engine go on until requests end."""
    server = start("--shutdown-timeout=600")
    processes = everything_of(server)
    engine = processes[-1]
    with contextlib.ExitStack() as stack:
        http = [stack.enter_context(client_of(server, front)) for front in fronts_of(server) * 2]
        pool = stack.enter_context(ThreadPoolExecutor(2))
        engine.suspend()  # so that nothing ends before we have looked
        body = LONG | {"max_tokens": 300, "stream": True}
        answers = [pool.submit(client.post, "/v1/completions", json=body) for client in http[:2]]
        assert comes_true(lambda: http[2].get("/load").json()["server_load"] == 2)
        os.killpg(server.process.pid, signal.SIGTERM)
        assert comes_true(lambda: [client.get("/health").status_code for client in http[2:]] == [503, 503])
        engine.resume()
        streams = [iter(answer.result().text.splitlines()) for answer in answers]
        assert [finish_of(lines)["finish_reason"] for lines in streams] == ["length", "length"]
    assert server.wait() == 0
    assert nothing_is_left(server, processes)
    assert "engine is gone" not in server.log.read_text()


def test_a_second_signal_ends_requests(start: Start) -> None:
    server = start("--shutdown-timeout=600")
    processes = everything_of(server)
    with contextlib.ExitStack() as stack:
        http = [stack.enter_context(client_of(server, front)) for front in fronts_of(server)]
        streams = [stack.enter_context(stream_of(client, **LONG)) for client in http]
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGINT)
        finishes = [finish_of(lines) for lines in streams]
    assert [(found["finish_reason"], found["stop_reason"]) for found in finishes] == [("abort", "shutdown")] * 2
    assert server.wait() == 0
    assert nothing_is_left(server, processes)


def test_an_engine_that_dies_is_told_by_every_front(start: Start) -> None:
    server = start()
    processes = everything_of(server)
    with contextlib.ExitStack() as stack:
        http = [stack.enter_context(client_of(server, front)) for front in fronts_of(server)]
        engine = server.engine()
        streams = [stack.enter_context(stream_of(client, **LONG)) for client in http]
        engine.kill()
        assert [finish_of(lines)["code"] for lines in streams] == ["engine_dead", "engine_dead"]
    assert server.wait() == 1
    assert nothing_is_left(server, processes)
    assert "was killed by SIGKILL" in server.log.read_text()


def test_whoever_is_killed_is_replaced_until_the_parent_is(start: Start, tmp_path: Path) -> None:
    """A front: the others go on, its requests end, its counts stay. The engine, once if asked. Then the parent."""
    held = hold_boots(tmp_path)
    held.unlink()
    server = start("--restart-on-failure", "--served-model-name=tiny", PYTHONPATH=with_plugins_of(tmp_path))
    first, second = fronts_of(server)
    with client_of(server, second) as other, client_of(server, second) as third:
        expected = other.post("/v1/completions", json=GREEDY).json()["choices"]
        with client_of(server, first) as lost:
            lost.post("/v1/completions", json=GREEDY)
            with stream_of(other, **LONG) as lines, stream_of(lost, **LONG) as broken:
                assert third.get("/load").json()["server_load"] == 2
                first.kill()
                with pytest.raises(httpx.TransportError):
                    list(broken)
                assert comes_true(lambda: third.get("/load").json()["server_load"] == 1)
                assert comes_true(lambda: {step["generation_requests"] for step in last_steps(third, 100)} == {1})
                goes_on = [next(lines) for _ in range(200)]
    assert all(not line or "error" not in json.loads(line.removeprefix("data: ")) for line in goes_on)
    assert comes_true(lambda: len(fronts_of(server)) == 2)
    third_one = next(front for front in fronts_of(server) if front.pid != second.pid)
    assert comes_true(lambda: any(item.status == "LISTEN" for item in third_one.net_connections("tcp")))
    for front in fronts_of(server):
        with client_of(server, front) as client:
            assert sample(client, "generation_tokens_total") >= 12 + 12 + 100
            assert comes_true(lambda client=client: sample(client, "num_requests_running") == 0)
            assert client.post("/v1/completions", json=GREEDY).json()["choices"] == expected

    held.touch()  # so that the second engine is not there before we have looked
    server.engine().kill()
    assert comes_true(lambda: server.http.get("/health").status_code == 503)
    held.unlink()
    assert comes_true(lambda: server.http.get("/health").status_code == 200)
    for front in fronts_of(server):
        with client_of(server, front) as client:
            assert comes_true(lambda client=client: client.get("/health").status_code == 200)
            assert client.post("/v1/completions", json=GREEDY).json()["choices"] == expected
    processes = everything_of(server)
    server.process.kill()
    server.process.wait()
    assert nothing_is_left(server, processes)
