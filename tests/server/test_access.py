"""Who may ask: keys on every route but health, admin routes only if enabled, web pages only of allowed origins."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from fathom.entrypoints.server import web
from fathom.entrypoints.server.app import ADMIN_ROUTES, OPEN_PATHS, ROUTES, WEB_ROUTES
from tests.client.processes import PATIENCE_S
from tests.server.processes import Server

PATHS = [(method, path.replace("{model:path}", "x")) for method, path, _ in (*ROUTES, *WEB_ROUTES, *ADMIN_ROUTES)]


@pytest.mark.parametrize("key", [None, "", "Bearer", "Bearer three", "Basic one", "Bearer one2"])
def test_without_a_key_there_is_only_health(guarded: Server, key: str | None) -> None:
    """C93, over all routes, and those that do not exist."""
    assert OPEN_PATHS - set(web.FILES) == {"/health", "/ping"}
    for method, path in [*PATHS, ("GET", "/nothing"), ("GET", "/page/"), ("GET", "/health/")]:
        answer = guarded.http.request(method, path, headers={"Authorization": key or ""})
        is_open = path in OPEN_PATHS  # to all, though /health may say that the engine has not answered for a while
        assert (answer.status_code != 401) == is_open, (method, path)
        if not is_open:
            error = answer.json()["error"]
            anthropic = path.startswith("/v1/messages")
            assert error["type"] == "authentication_error"
            assert anthropic == (answer.json().get("type") == "error") == ("code" not in error)
            assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "headers",
    [{"Authorization": "Bearer one"}, {"Authorization": "bearer two"}, {"X-Api-Key": "one", "Authorization": ""}],
)
def test_each_key_opens(guarded: Server, headers: dict[str, str]) -> None:
    assert guarded.http.get("/v1/models", headers=headers).status_code == 200


def test_origins(guarded: Server, server: Server) -> None:
    page, other = {"Origin": "https://example.com"}, {"Origin": "https://example.org"}
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    assert guarded.http.options("/v1/completions", headers=page | asks).status_code == 200
    allowed = "access-control-allow-origin"
    assert guarded.http.get("/v1/models", headers=page).headers[allowed] == "https://example.com"
    assert allowed not in guarded.http.get("/v1/models", headers=other).headers
    assert allowed not in server.http.get("/v1/models", headers=page).headers


def test_bodies_that_are_too_large(guarded: Server) -> None:
    def endless() -> object:
        for _ in range(300):
            yield b" " * 1000

    for content in (b" " * 100_001, endless()):
        answer = guarded.http.post("/v1/completions", content=content)  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    answer = guarded.http.post("/v1/messages", content=b" " * 100_001)
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")


def test_every_answer_has_a_request_id(server: Server) -> None:
    given = server.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers={"X-Request-Id": "me-1"})
    assert (given.headers["x-request-id"], given.json()["id"]) == ("me-1", "cmpl-me-1")
    for bad in ("", "a b", "x" * 200, "\xe9"):
        answer = server.http.get("/health", headers={"X-Request-Id": bad.encode("latin-1")})  # type: ignore[dict-item]
        assert answer.headers["x-request-id"] not in ("", bad)
    own = server.post("/v1/completions", prompt="a", max_tokens=1, request_id="mine")
    assert own.json()["id"] == "cmpl-mine"


def test_admin_routes_if_enabled(guarded: Server) -> None:
    assert guarded.post("/reset_prefix_cache").status_code == 200
    assert guarded.post("/stop_profile").json()["error"]["code"] == "profile_inactive"
    assert guarded.post("/start_profile").status_code == 200
    assert guarded.post("/start_profile").status_code == 409
    guarded.post("/v1/completions", prompt="a", max_tokens=1)
    files = guarded.post("/stop_profile").json()["files"]
    assert [Path(file).parent for file in files] == [guarded.tmp / "profile"]


FLOODS = {
    "headers": (b"GET /health HTTP/1.1\r\nHost: a\r\n", b"X-A: " + b"y" * 8000 + b"\r\n"),
    "one header": (b"GET /health HTTP/1.1\r\nX-A: ", b"y" * 8000),
    "path": (b"GET /", b"y" * 8000),
    "trailers": (
        b"POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n",
        b"X-A: " + b"y" * 8000 + b"\r\n",
    ),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_head_without_end_ends_the_connection(guarded: Server, flood: str) -> None:
    """Before a key has come."""
    start, more = FLOODS[flood]
    host, port = guarded.url.removeprefix("http://").split(":")
    sent = 0
    with (
        socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection,
        contextlib.suppress(ConnectionError),
    ):
        connection.sendall(start)
        while sent < 50_000_000:
            connection.sendall(more)
            sent += len(more)
    assert sent < 50_000_000
    assert guarded.http.get("/version").status_code == 200


def test_long_headers_pass(guarded: Server) -> None:
    assert guarded.http.get("/v1/models", headers={"X-A": "y" * 50_000}).status_code == 200
