"""A rival's HTTP server in processes of its own, for as long as it is needed."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.environments import ContenderError
from benchmarks.peers.processes import end_with_children

REQUEST_SECONDS = 600


class RivalServer:
    """Started with a command, ready once /health says so, ended with all processes that it has started.

    Args:
        command: without --host and --port, which are added.
        start_seconds: how long it may take until it is ready.

    Raises:
        ContenderError: it ended, or was not ready in time.
    """

    def __init__(
        self,
        command: Sequence[object],
        log: Path,
        *,
        start_seconds: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._port = _free_port()
        words = [str(word) for word in (*command, "--host", "127.0.0.1", "--port", self._port)]
        with log.open("ab") as output:
            self._process = subprocess.Popen(words, stdout=output, stderr=output, env=environment)
        self._wait_until_ready(log, start_seconds)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def close(self) -> None:
        """Ask it to end, and end what is left of it after some seconds."""
        end_with_children(self._process, self._process.terminate)

    def ask(self, method: str, path: str, body: str | None = None) -> bytes:
        """The body of the answer to a request.

        Raises:
            OSError: nobody answers.
            ContenderError: the answer is no success.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=REQUEST_SECONDS)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read()
            if response.status != 200:
                raise ContenderError(f"{path} was answered with {response.status}: {content[:200]!r}")
            return content
        finally:
            connection.close()

    def ask_json(self, method: str, path: str, body: object) -> dict:
        return json.loads(self.ask(method, path, json.dumps(body)))

    def __enter__(self) -> RivalServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _wait_until_ready(self, log: Path, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._process.poll() is None:
            try:
                self.ask("GET", "/health")
                return
            except (OSError, http.client.HTTPException, ContenderError):
                time.sleep(0.1)
        self.close()
        raise ContenderError(f"the server did not start; see {log}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
