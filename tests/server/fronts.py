"""Reaching a certain front of a server: the kernel chooses one for each connection, and /proc says which."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx
import psutil

from tests.client.processes import PATIENCE_S, title_of
from tests.server.processes import Server

_ONE_FOR_EVER = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=None)


def fronts_of(server: Server) -> list[psutil.Process]:
    """The front processes that run, in the order of their numbers."""
    children = psutil.Process(server.process.pid).children()
    found = {title: child for child in children if "Front-" in (title := title_of(child))}
    return [found[name] for name in sorted(found)]


def front_at(server: Server, port: int) -> int | None:
    """The id of the front that has a connection with this port of ours; None if none has accepted it yet."""
    for front in fronts_of(server):
        if any(item.raddr and item.raddr.port == port for item in front.net_connections("tcp")):
            return front.pid
    return None


@contextmanager
def client_of(server: Server, front: psutil.Process) -> Iterator[httpx.Client]:
    """A client with one connection, which is that front's until a stream on it breaks off."""
    for _ in range(100):
        client = httpx.Client(base_url=server.url, timeout=PATIENCE_S, limits=_ONE_FOR_EVER)
        answer = client.get("/ping")
        port = answer.extensions["network_stream"].get_extra_info("client_addr")[1]
        if front_at(server, port) == front.pid:
            break
        client.close()
    else:
        raise AssertionError(f"no connection reached front {front}")
    with closing(client):
        yield client


@contextmanager
def stream_of(client: httpx.Client, **body: Any) -> Iterator[Iterator[str]]:
    """An open stream that has sent something."""
    with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        lines = response.iter_lines()
        next(lines)
        yield lines
