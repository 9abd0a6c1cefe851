"""What a token of a stream costs the server's process: CPU time from an engine's outputs to the sockets.

    python -m benchmarks.front                     # 64 streams of 64 tokens, as completions and as chats
    python -m benchmarks.front --streams 32 --tokens 200

The application, AsyncLLM and the sockets are the server's own, in this process; clients are in another. In the engine's
place something sends every stream a token as soon as the last ones are out, so nothing is ever joined and nothing else
uses this process's thread. Requests are counted in: more tokens a request cost less each. To compare two versions, run
them in turns; the smallest of several rounds is the one that was disturbed least.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import selectors
import socket
import sys
import time
from typing import Any

import uvloop

from fathom.client.base import AsyncEngineCoreClient
from fathom.config import EngineConfig
from fathom.entrypoints.server.lifecycle import StopSignals, lead_life
from fathom.entrypoints.server.settings import ServerSettings
from fathom.entrypoints.server.under_way import OwnCounts
from fathom.frontend import boot
from fathom.frontend.async_engine import AsyncLLM
from fathom.frontend.metrics import PrometheusObserver
from fathom.frontend.stats import EngineObserver
from fathom.wire.codec import Decoder, Encoder
from fathom.wire.messages import (
    AddRequests,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineReady,
    FinishReason,
    FromRunningEngine,
    SchedulerStats,
    StepStats,
)

CONTEXT = 2048
BLOCK_SIZE = 16
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": list(range(5, 133))},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "What is a fathom?"}]},
}
_STEP_S = 0.004
"""Longer than the loop takes to send everybody a token."""


class InstantEngine(AsyncEngineCoreClient):
    """Gives each request a token a step, once all streams are there."""

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._left: dict[str, int] = {}  # request -> tokens
        self._complete = asyncio.Event()
        self._num_steps = 0
        self._encoder, self._decoder = Encoder(), Decoder[EngineCoreOutputs](FromRunningEngine)

    async def wait_ready(self) -> EngineReady:
        return EngineReady(CONTEXT, CONTEXT, num_kv_blocks=1000, block_size=BLOCK_SIZE, kv_cache_bytes=1)

    async def add_requests(self, message: AddRequests) -> None:
        for request in message.requests:
            self._left[request.request_id] = message.params[request.params].max_tokens or 1
        if len(self._left) == self._streams:
            self._complete.set()

    async def abort_requests(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._left.pop(request_id, None)

    async def get_outputs(self) -> EngineCoreOutputs:
        await self._complete.wait()
        await asyncio.sleep(_STEP_S)
        self._num_steps += 1
        outputs: list[EngineCoreOutput] = []
        tokens: dict[str, list[int]] = {}
        for request_id in list(self._left):
            self._add_token(request_id, outputs, tokens)
        if not self._left:
            self._complete.clear()
        running = len(outputs) + len(tokens)
        stats = SchedulerStats(running, 0, 0.5, 1, 1, 0, self._num_steps)
        step = StepStats(0, 0, running, running, 0, time.time(), 0.001, 0.02, 0.001)
        return self._decoder.decode(
            self._encoder.encode(EngineCoreOutputs(outputs, stats=stats, step=step, tokens=tokens))
        )

    def _add_token(self, request_id: str, outputs: list[EngineCoreOutput], tokens: dict[str, list[int]]) -> None:
        """A request's next token; as the scheduler does it, bare in 14 of 16 steps."""
        self._left[request_id] -= 1
        left = self._left[request_id]
        token_id = 40 + (7 * self._num_steps + len(request_id)) % 400
        if left and left % BLOCK_SIZE > 1:
            tokens[request_id] = [token_id]
            return
        output = EngineCoreOutput(request_id, [token_id], scheduled_time=time.time())
        if not left:
            output.finish_reason = FinishReason.LENGTH
            del self._left[request_id]
        outputs.append(output)

    async def call(self, method: str, *args: Any) -> Any:
        return dict.fromkeys(SchedulerStats.__struct_fields__, 0)

    def close(self) -> None:
        self._left.clear()


async def serve(options: argparse.Namespace) -> None:
    """Serve, and have clients ask from another process."""
    prepared = boot.prepare(EngineConfig.from_options(model=options.model))
    tokenizer = boot.load_caller_tokenizer(prepared)
    signals: StopSignals = asyncio.Queue()
    asking: list[asyncio.Future[None]] = []

    async def start(observer: EngineObserver) -> AsyncLLM:
        engine = InstantEngine(options.streams)
        return AsyncLLM(prepared, engine, tokenizer, await engine.wait_ready(), observer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def ready() -> None:
            asking.append(asyncio.ensure_future(measure(port, options, signals)))

        settings = ServerSettings(port=0)
        await lead_life(start, settings, PrometheusObserver("model"), OwnCounts(), listener, signals, ready)
    await asking[0]


async def measure(port: int, options: argparse.Namespace, signals: StopSignals) -> None:
    """Print a line for each endpoint; the server's stop follows."""
    try:
        for path in BODIES:
            found = []
            for _ in range(options.rounds):
                before = time.thread_time()
                arguments = [str(item) for item in (port, path, options.streams, options.tokens)]
                process = await asyncio.create_subprocess_exec(sys.executable, __file__, "--ask", *arguments)
                if await process.wait():
                    raise SystemExit("the clients failed")
                found.append((time.thread_time() - before) / options.streams / options.tokens)
            listed = ", ".join(f"{1e6 * seconds:.1f}" for seconds in found)
            print(f"{path:22} {1e6 * min(found):6.1f} us of CPU a token ({listed})", flush=True)
    finally:
        signals.put_nowait(0)


def ask(port: int, path: str, streams: int, tokens: int) -> None:
    """The clients: a request on each of so many connections, read to its end."""
    fixed = {"max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True}
    body = json.dumps(BODIES[path] | fixed).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: front\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    selector = selectors.DefaultSelector()
    for _ in range(streams):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(head.encode() + body)
        selector.register(connection, selectors.EVENT_READ)
    while selector.get_map():
        for key, _ in selector.select():
            assert isinstance(key.fileobj, socket.socket)
            data = key.fileobj.recv(1 << 16)
            if not data:
                raise SystemExit("the server hung up")
            if data.endswith(b"\r\n0\r\n\r\n"):
                selector.unregister(key.fileobj)


def main() -> None:
    if sys.argv[1:2] == ["--ask"]:
        port, path, streams, tokens = sys.argv[2:]
        ask(int(port), path, int(streams), int(tokens))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="whose tokenizer and template are used (%(default)s)")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=8)
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
