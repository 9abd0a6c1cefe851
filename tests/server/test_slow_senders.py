"""Clients that do not send their requests to the end: heads and bodies that stop, or come byte by byte."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.processes import PATIENCE_S, comes_true
from tests.server.conftest import POOL
from tests.server.processes import Server

TIMEOUT_S = 0.5


@pytest.fixture(scope="module")
def impatient(tiny_chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ["--api-key=one", f"--request-read-timeout={TIMEOUT_S}", POOL]
    started = Server(tiny_chat_model, tmp_path_factory.mktemp("impatient"), *flags)
    started.http.headers["Authorization"] = "Bearer one"
    yield started
    assert started.stop() == 0


def connect(server: Server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def answers_to(server: Server, sent: bytes) -> bytes:
    """All that the server says on a connection on which it has got this in time.

    A process that does not get to run may send too late; then it asks again.
    """
    while True:
        began = time.monotonic()
        with connect(server) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(sent)
            if time.monotonic() - began < TIMEOUT_S / 2:
                return read_to_end(connection)


def read_to_end(connection: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(65536):
            found += data
    return found


def body_of(answer: bytes) -> dict[str, object]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 Request Timeout")
    assert b"connection: close" in head
    error: dict[str, object] = json.loads(body)["error"]
    return error


POST = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer one\r\n"
BODY = b'{"prompt": "a", "max_tokens": 200, "ignore_eos": true, "temperature": 0}'
WHOLE = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY

STARTS = {
    "line": (b"GET /hea", "head"),
    "headers": (b"GET /health HTTP/1.1\r\nHost: a\r\nX-A:", "head"),
    "no body": (POST + b"Content-Length: 20\r\n\r\n", "body"),
    "half a body": (POST + b'Content-Length: 20\r\n\r\n{"prompt": ', "body"),
    "half a chunk": (POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{", "body"),
    "no last chunk": (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", "body"),
}


@pytest.mark.parametrize("name", STARTS)
def test_a_request_that_stops_in_the_middle_is_a_408(impatient: Server, name: str) -> None:
    start, part = STARTS[name]
    error = body_of(answers_to(impatient, start))
    assert (error["type"], error["code"]) == ("invalid_request_error", "request_timeout")
    assert f"The {part} of the request did not come within {TIMEOUT_S} s" in str(error["message"])


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\nX-A: ", POST + b"Content-Length: 100000\r\n\r\n"])
def test_byte_by_byte_is_no_way_around_it(impatient: Server, start: bytes) -> None:
    sent = 0
    with connect(impatient) as connection:
        connection.sendall(start)
        connection.settimeout(0.05)
        answer = b""
        while sent < 1000 and not answer:
            with contextlib.suppress(TimeoutError):
                answer = connection.recv(65536)
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"y")
            sent += 1
    assert sent < 1000
    assert answer.startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("nothing", [b"", b"\r\n"], ids=["silence", "an empty line"])
def test_a_connection_on_which_nothing_is_asked_is_closed(impatient: Server, nothing: bytes) -> None:
    assert answers_to(impatient, nothing) == b""


def test_an_answer_of_a_status_is_not_followed_by_another(impatient: Server) -> None:
    """The key is wrong, which is said at once; the body never comes."""
    answer = answers_to(impatient, POST.replace(b"Bearer one", b"Bearer two") + b"Content-Length: 20\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 401")
    assert answer.count(b"HTTP/1.1") == 1


def test_what_is_answered_meanwhile_is_answered_to_its_end(impatient: Server) -> None:
    """The head of a second request hangs behind a first one that takes longer than the time for heads."""
    long = BODY.replace(b"200", b"3000")
    first = POST + b"Content-Length: %d\r\n\r\n" % len(long) + long
    answers = answers_to(impatient, first + b"GET /health HTTP/1.1\r\nX-A: ")
    assert answers.startswith(b"HTTP/1.1 200")
    assert b'"completion_tokens":3000' in answers
    assert answers.count(b"HTTP/1.1 408") == 1


def test_requests_in_time_and_connections_between_two_are_left_alone(impatient: Server) -> None:
    def ask_twice() -> bool:
        """False if this process was late itself, which shows nothing."""
        with connect(impatient) as connection:
            for _ in range(2):
                began = time.monotonic()
                with contextlib.suppress(ConnectionError):
                    for piece in (WHOLE[:10], WHOLE[10:100], WHOLE[100:]):
                        connection.sendall(piece)
                        time.sleep(0.02)
                if time.monotonic() - began > TIMEOUT_S / 2:
                    return False
                found = b""
                while b'"completion_tokens":200' not in found:
                    part = connection.recv(65536)
                    assert part, found
                    found += part
                time.sleep(2 * TIMEOUT_S)  # the next request may take its time to begin
        return True

    assert comes_true(ask_twice)
