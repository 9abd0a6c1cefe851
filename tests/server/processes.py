"""A server as a user runs it: `fathom serve` in a process of its own, on a port that was free.

It ends with the tests, however those end.
"""

from __future__ import annotations

import os
import re
import signal
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil

from fathom.entrypoints.cli.bench.own_server import start_server
from tests.client.processes import PATIENCE_S, engine_of

_URL = re.compile(r"serving .* at (https?://\S+|unix:\S+)")


class Server:
    """A running server; its output is in `log`.

    tls: what clients need for https.
    """

    def __init__(
        self,
        model: str | Path,
        tmp: Path,
        *flags: str,
        env: dict[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.tmp = tmp
        self.log = tmp / "server.log"
        with self.log.open("w") as log:
            self.process = start_server(
                [str(model), "--num-threads=1", *flags],
                env={**os.environ, "TMPDIR": str(tmp), "FATHOM_LOGGING_LEVEL": "INFO", **(env or {})},
                stderr=log,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = _URL.search(line)
        if found is None:
            self.process.wait(PATIENCE_S)
            raise AssertionError(f"the server did not start: {line!r} {self.log.read_text()}")
        self.url = found[1]
        path = self.url.removeprefix("unix:") if self.url.startswith("unix:") else None
        transport = httpx.HTTPTransport(verify=tls or False, uds=path)
        base_url = self.url if path is None else "http://localhost"
        self.http = httpx.Client(base_url=base_url, transport=transport, timeout=PATIENCE_S)

    def client(self, key: str = "none", **options: Any) -> openai.OpenAI:
        """OpenAI's client; it does not try again unless told."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S, **options)

    def async_client(self, key: str = "none") -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics: name{labels but the model's and the engine's} -> value."""
        found = {}
        for line in self.http.get("/metrics").text.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = re.sub(r'(engine="0",?|model_name="[^"]*",?)', "", name).replace(",}", "}").replace("{}", "")
                found[name.removeprefix("fathom:")] = float(value)
        return found

    def engine(self) -> psutil.Process:
        return engine_of(self.process.pid)

    def stop(self) -> int:
        """Ask it to end, and wait; its exit code."""
        self.http.close()
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()


Start = Callable[..., Server]
"""start(*flags, **env): a server of a test's own."""


def starting(model: Path, tmp: Path, *always: str) -> Iterator[Start]:
    """Gives a Start, whose servers have the flags `always` too, and ends them after the test."""
    servers: list[Server] = []

    def start(*flags: str, **env: str) -> Server:
        servers.append(Server(model, tmp, *always, *flags, env=env))
        return servers[-1]

    yield start
    for server in servers:
        server.process.kill()
        server.process.wait()
        server.http.close()
