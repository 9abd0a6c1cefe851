"""How soon a full server says so: the time to a 429 while every place is taken, and what the streams lose by it.

    python -m benchmarks.overload
    python -m benchmarks.overload --model qwen2.5-coder-0.5b --rate 200

Streams that do not end fill the engine and the queue. Their chunks are counted for some seconds; then requests come at
a rate, one after the other on a connection that is kept, and each is timed from before its first byte is sent until its
answer is read; the target is 10 ms. A /ping after each of them shows what of that is the machine's: the client, plain
sockets, shares its cores with the server and the engine.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.served import ServedModel

PLACES = 4
"""In the engine, and as many in the queue."""
ENDLESS: dict[str, Any] = {"prompt": "The sea", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
ONE_MORE = json.dumps({"prompt": "One more.", "max_tokens": 1})


class Load:
    """Streams that fill a server. `chunks` counts what has come of all of them; one that ends is begun again."""

    def __init__(self, host: str, port: int, streams: int) -> None:
        self._address = host, port
        self._selector = selectors.DefaultSelector()
        for _ in range(streams):
            self._begin()
        self.chunks = 0
        self._over = False
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def end(self) -> None:
        """Close all of them."""
        self._over = True
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()

    def _begin(self) -> None:
        connection = socket.create_connection(self._address)
        body = json.dumps(ENDLESS).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: fathom\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self) -> None:
        while not self._over:
            for key, _ in self._selector.select(0.1):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                received = connection.recv(1 << 16)
                self.chunks += received.count(b"data: {")
                if not received or b"data: [DONE]" in received:
                    self._selector.unregister(connection)
                    connection.close()
                    self._begin()


def ask(connection: HTTPConnection, method: str, path: str, body: str | None = None) -> tuple[HTTPResponse, float]:
    """The answer, which has been read, and the milliseconds that it took."""
    began = time.perf_counter()
    connection.request(method, path, body)
    answer = connection.getresponse()
    answer.read()
    return answer, 1000 * (time.perf_counter() - began)


def measure(server: ServedModel, rate: float, seconds: float) -> bool:
    """Print the figures; whether all requests were turned away as they should be."""
    host, port = server.url.removeprefix("http://").split(":")
    load = Load(host, int(port), 2 * PLACES)
    while server.metrics()["num_requests_waiting"] < PLACES or not load.chunks:
        time.sleep(0.05)
    before = load.chunks
    time.sleep(seconds)
    alone = (load.chunks - before) / seconds
    connection = HTTPConnection(host, int(port))
    kinds: Counter[tuple[int, str | None]] = Counter()
    refusals, pings = [], []
    before, began = load.chunks, time.perf_counter()
    for number in range(round(rate * seconds)):
        time.sleep(max(0.0, began + number / rate - time.perf_counter()))
        answer, milliseconds = ask(connection, "POST", "/v1/completions", ONE_MORE)
        refusals.append(milliseconds)
        kinds[answer.status, answer.getheader("Retry-After")] += 1
        pings.append(ask(connection, "GET", "/ping")[1])
    beside = (load.chunks - before) / (time.perf_counter() - began)
    load.end()
    for (status, retry_after), count in kinds.items():
        print(f"{count:,} x {status}, Retry-After {retry_after}")
    for name, milliseconds in (("429", refusals), ("/ping", pings)):
        p50, p99, most = np.percentile(milliseconds, [50, 99, 100])
        print(f"time to {name:6} p50 {p50:5.1f}, p99 {p99:5.1f}, most {most:5.1f} ms")
    print(f"chunks a second of the accepted: {alone:.0f} alone, {beside:.0f} beside {rate:g} refusals a second")
    return set(kinds) == {(429, "1")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rate", type=float, default=50.0, help="refused requests a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="overload-") as name:
        server = ServedModel(options.model, Path(name), f"--max-num-seqs={PLACES}", f"--max-queue={PLACES}")
        try:
            good = measure(server, options.rate, options.seconds)
        finally:
            left = server.end()
    print("after SIGTERM: exit code 0, nothing is left" if not left else f"after SIGTERM: {left}   <- WRONG")
    sys.exit(0 if good and not left else 1)


if __name__ == "__main__":
    main()
