"""A server's life: what stops it from starting, how it ends, and what it says while its engine is in trouble."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.client.processes import PATIENCE_S, comes_true, hold_boots, is_gone, socket_folders, with_plugins_of
from tests.server.conftest import POOL
from tests.server.processes import Server, Start, starting
from tests.server.test_load import LONG, stream


@pytest.fixture
def start(tiny_chat_model: Path, tmp_path: Path) -> Iterator[Start]:
    """start(*flags): a server of this test's own."""
    yield from starting(tiny_chat_model, tmp_path, POOL)


def nothing_is_left(server: Server, engine: Any) -> bool:
    return comes_true(lambda: is_gone(engine) and not socket_folders(server.tmp))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--port={port}"], 1, "is in use"),
        (["--port={port}", "--api-server-count=2"], 1, "is in use"),
        (["--api-server-count=0"], 1, "api_server_count"),
        (["--model=/no/such/model", "--api-server-count=2"], 1, "/no/such/model"),
        (["--host=192.0.2.1"], 1, "cannot listen at"),
        (["--no-such-flag"], 2, "--no-such-flag"),
        (["--port=many"], 2, "--port"),
        (["--port=70000"], 1, "port must be at most"),
        (["--chat-template=/no/such/file"], 1, "/no/such/file"),
        (["--tool-call-parser=nobody"], 1, "nobody"),
        (["--default-chat-template-kwargs=[1]"], 1, "JSON object"),
        (["--uds=/no/such/folder/socket"], 1, "/no/such/folder/socket"),
        (["--ssl-certfile=/no/such/file"], 1, "ssl_certfile /no/such/file cannot be used: No such file"),
        (["--middleware=mine.Middleware"], 1, "Put a proxy before the server, see --root-path and --uds."),
        (["--max-num-seqs=0"], 1, "max_num_seqs"),
        (["--model=/no/such/model"], 1, "/no/such/model"),
        (["--model=one", "two"], 1, "--model=one contradicts the argument two. Give one of them."),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    tiny_chat_model: Path, arguments: list[str], code: int, words: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flags = [argument.format(port=taken.getsockname()[1]) for argument in arguments]
        model = [] if any(flag.startswith("--model") for flag in flags) else [str(tiny_chat_model)]
        command = [sys.executable, "-m", "fathom", "serve", *model, *flags]
        run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (run.returncode, run.stdout) == (code, "")
    assert words in run.stderr
    assert "Traceback" not in run.stderr
    assert "load" not in run.stderr


def test_the_first_signal_lets_requests_end(start: Start) -> None:
    """C77: what runs ends well, what comes is turned away, and nothing is left."""
    server = start("--shutdown-timeout=600")
    engine = server.engine()
    engine.suspend()  # so that nothing ends before we have looked
    with ThreadPoolExecutor(1) as pool:
        body = LONG | {"max_tokens": 300, "stream": True}
        answer = pool.submit(httpx.post, f"{server.url}/v1/completions", json=body, timeout=PATIENCE_S)
        assert comes_true(lambda: server.http.get("/load").json()["server_load"] == 1)
        server.process.send_signal(signal.SIGTERM)
        assert comes_true(lambda: server.http.get("/health").status_code == 503)
        refused = server.post("/v1/completions", prompt="A")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        engine.resume()
        events = [line for line in answer.result().text.splitlines() if line]
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert server.wait() == 0
    assert nothing_is_left(server, engine)


@pytest.mark.parametrize("second_signal", [False, True])
def test_requests_that_do_not_end_in_time_are_ended(start: Start, second_signal: bool) -> None:
    server = start("--shutdown-timeout=600" if second_signal else "--shutdown-timeout=0.3")
    engine = server.engine()
    with stream(server, **LONG) as lines, ThreadPoolExecutor(1) as pool:
        whole = pool.submit(httpx.post, f"{server.url}/v1/completions", json=LONG, timeout=PATIENCE_S)
        assert comes_true(lambda: server.http.get("/load").json()["server_load"] == 2)
        server.process.send_signal(signal.SIGINT)
        if second_signal:
            assert comes_true(lambda: server.http.get("/health").status_code == 503)
            server.process.send_signal(signal.SIGTERM)
        events = [line for line in lines if line]
        answers = [json.loads(events[-2].removeprefix("data: ")), whole.result().json()]
    assert events[-1] == "data: [DONE]"
    for answer in answers:
        choice = answer["choices"][0]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("abort", "shutdown")
    assert server.wait() == 0
    assert nothing_is_left(server, engine)


def test_an_engine_that_dies_ends_streams_with_an_error(start: Start) -> None:
    """C74, C61: an event with the error, then the end; /health says so; the exit code is not 0."""
    server = start()
    engine = server.engine()
    with stream(server, **LONG) as lines, ThreadPoolExecutor(1) as pool:
        whole = pool.submit(httpx.post, f"{server.url}/v1/completions", json=LONG, timeout=PATIENCE_S)
        assert comes_true(lambda: server.http.get("/load").json()["server_load"] == 2)
        engine.kill()
        events = [line for line in lines if line]
        failed = whole.result()
        with contextlib.suppress(httpx.TransportError):
            assert server.http.get("/health").status_code == 503
    assert events[-1] == "data: [DONE]"
    for error in (json.loads(events[-2].removeprefix("data: "))["error"], failed.json()["error"]):
        assert (error["code"], error["type"]) == ("engine_dead", "service_unavailable_error")
    assert failed.status_code == 503
    assert server.wait() == 1
    assert nothing_is_left(server, engine)
    told = [line for line in server.log.read_text().splitlines() if " aborted after " in line]
    assert len(told) == 2
    assert all(line.endswith(" s: the engine is gone") for line in told)


def test_a_dead_engine_is_started_again_if_asked_and_dies_with_its_server(start: Start, tmp_path: Path) -> None:
    """C76: after kill -9 of the server nothing is left."""
    held = hold_boots(tmp_path)
    held.unlink()
    server = start("--restart-on-failure", PYTHONPATH=with_plugins_of(tmp_path))
    before = server.post("/v1/completions", **(LONG | {"max_tokens": 9})).json()
    held.touch()  # so that the second engine is not there before we have looked
    server.engine().kill()
    assert comes_true(lambda: server.http.get("/health").status_code == 503)
    held.unlink()
    assert comes_true(lambda: server.http.get("/health").status_code == 200)
    after = server.post("/v1/completions", **(LONG | {"max_tokens": 9})).json()
    assert after["choices"] == before["choices"]
    second = server.engine()
    server.process.kill()
    server.process.wait()
    assert nothing_is_left(server, second)


def test_a_stalled_engine_is_unhealthy_until_it_answers_again(guarded: Server) -> None:
    engine = guarded.engine()
    assert comes_true(lambda: guarded.http.get("/health").status_code == 200)
    engine.suspend()
    try:
        assert comes_true(lambda: guarded.http.get("/health").status_code == 503)
        assert guarded.http.get("/health").json()["error"]["code"] == "engine_stalled"
        assert guarded.http.get("/metrics").status_code == 200
    finally:
        engine.resume()
    assert comes_true(lambda: guarded.http.get("/health").status_code == 200)
    assert guarded.post("/v1/completions", prompt="A", max_tokens=2).status_code == 200


def test_only_the_port_listens(server: Server) -> None:
    """C92: one TCP socket, at 127.0.0.1; the engine has none."""
    import psutil

    listening = [c for c in psutil.Process(server.process.pid).net_connections("tcp") if c.status == "LISTEN"]
    assert [(c.laddr.ip, f"http://127.0.0.1:{c.laddr.port}") for c in listening] == [("127.0.0.1", server.url)]
    assert server.engine().net_connections("tcp") == []


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.server.processes import Server
server = Server(sys.argv[1], Path(sys.argv[2]))
print(server.process.pid, server.engine().pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_servers_of_tests_that_are_killed_end_with_them(tiny_chat_model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tiny_chat_model), str(tmp_path)]
    root = Path(__file__).parents[2]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=root)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert comes_true(lambda: not any(psutil.pid_exists(int(pid)) for pid in killed.stdout.split()))
    assert comes_true(lambda: not socket_folders(tmp_path))
