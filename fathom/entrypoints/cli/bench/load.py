"""Load: requests sent to a server of OpenAI's API when they are due, and the times at which answers came.

Bodies are encoded before the clock starts, and events are decoded only as far as is needed, so that the client's own
work between two chunks stays in the tens of microseconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

import httpx2
import msgspec

from fathom.entrypoints.cli.bench.workload import Workload
from fathom.entrypoints.cli.openai_client import CONNECT_SECONDS, EventReader, Remote, error_text, unreachable
from fathom.errors import RequestFailedError, ServerError

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WORDS = ("the", "of", "and", "to", "in", "is", "was", "for", "on", "that", "with", "as", "it", "at", "by", "from")


@dataclass(frozen=True)
class Dialect:
    """What a server takes. token_ids: prompts as token ids; else words, of which most are one token.

    extensions: ignore_eos, so that answers have the length that is asked for.
    """

    endpoint: str
    token_ids: bool
    extensions: bool

    def body(self, model: str, prompt: list[int], output_len: int) -> bytes:
        """A request as JSON."""
        content: Any = prompt if self.token_ids else " ".join(WORDS[token % len(WORDS)] for token in prompt)
        asked = {"messages": [{"role": "user", "content": content}]} if self.endpoint == CHAT else {"prompt": content}
        fixed = {"max_tokens": output_len, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        extended = {"ignore_eos": True} if self.extensions else {}
        return msgspec.json.encode({"model": model} | asked | fixed | extended)

    def describe(self) -> dict[str, Any]:
        return {
            "endpoint": self.endpoint,
            "prompts": "token ids" if self.token_ids else "words",
            "ignore_eos": self.extensions,
        }


@dataclass
class Answer:
    """What came of one request; times are seconds after it was sent.

    chunk_times: of each chunk with something new. end: of the last chunk. error: why it failed, else None.
    prompt_tokens, output_tokens: as the server counts them; None if it does not say.
    """

    chunk_times: list[float] = field(default_factory=list)
    end: float = 0.0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None

    @property
    def first_token(self) -> float:
        return self.chunk_times[0]

    @property
    def num_output(self) -> int:
        """Tokens; a server that counts none is taken to send one a chunk."""
        return len(self.chunk_times) if self.output_tokens is None else self.output_tokens

    @property
    def per_token(self) -> float | None:
        """Seconds for each token after the first; None for a single token."""
        return (self.end - self.first_token) / (self.num_output - 1) if self.num_output > 1 else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between chunks."""
        return [after - before for before, after in pairwise(self.chunk_times)]


@dataclass(frozen=True)
class Pace:
    """When requests go out: `rate` a second on average, of which at most `concurrency` are under way.

    rate: infinity sends all at once. burstiness: shape of the gamma distribution of the gaps; 1 is a Poisson process,
    less comes in bursts, more comes evenly. concurrency: None is no limit; a request that waits for a place has not
    been sent, and its clock does not run.
    """

    rate: float = float("inf")
    burstiness: float = 1.0
    concurrency: int | None = None

    def start_times(self, count: int, seed: int) -> list[float]:
        """Seconds after the beginning at which each request is due; the first at once."""
        if self.rate == float("inf"):
            return [0.0] * count
        random, now, times = Random(seed), 0.0, []
        for _ in range(count):
            times.append(now)
            now += random.gammavariate(self.burstiness, 1 / (self.rate * self.burstiness))
        return times


class Client:
    """Connections to a server, and the dialect that it was found to speak."""

    def __init__(self, remote: Remote, endpoint: str) -> None:
        self._remote = remote
        self._dialects = [
            Dialect(endpoint, token_ids=endpoint == COMPLETIONS, extensions=True),
            Dialect(endpoint, token_ids=endpoint == COMPLETIONS, extensions=False),
            Dialect(endpoint, token_ids=False, extensions=False),
        ]
        self._kept = _connections(remote, keep=None)
        self._fresh = _connections(remote, keep=0)

    @property
    def dialect(self) -> Dialect:
        return self._dialects[0]

    async def find_dialect(self, workload: Workload) -> None:
        """Ask for two tokens in the fullest dialect, and in lesser ones until the server takes it.

        Raises:
            ServerError: nobody answers, or the server refuses even the plainest request.
        """
        while True:
            answer = await self._ask(self.dialect.body(self._remote.model, workload.prompts[0], 2))
            if answer.error is None:
                return
            if len(self._dialects) == 1 or not answer.error.startswith(("400", "422")):
                raise ServerError(f"{self._remote.url}{self.dialect.endpoint}: {answer.error}")
            del self._dialects[0]

    async def run(
        self, workload: Workload, pace: Pace, *, seed: int = 0, done: Callable[[], object] = lambda: None
    ) -> tuple[float, list[Answer]]:
        """Send all requests. Returns the seconds from the first to the last answer's end, and the answers in order."""
        model, pairs = self._remote.model, zip(workload.prompts, workload.output_lens, strict=True)
        bodies = [self.dialect.body(model, prompt, output_len) for prompt, output_len in pairs]
        places = nullcontext() if pace.concurrency is None else asyncio.Semaphore(pace.concurrency)
        start = time.perf_counter()

        async def one(body: bytes, due: float) -> Answer:
            await asyncio.sleep(start + due - time.perf_counter())
            async with places:
                answer = await self._ask(body)
            done()
            return answer

        async with asyncio.TaskGroup() as group:
            times = pace.start_times(len(bodies), seed)
            tasks = [group.create_task(one(body, due)) for body, due in zip(bodies, times, strict=True)]
        return time.perf_counter() - start, [task.result() for task in tasks]

    async def close(self) -> None:
        await self._kept.aclose()
        await self._fresh.aclose()

    async def _ask(self, body: bytes) -> Answer:
        """Send a request and read its answer, or what went wrong.

        Some servers close a connection that they said to keep. Finding it closed is no failure of the request, which
        then goes out again on a new one; its clock runs on.
        """
        answer, start = Answer(), time.perf_counter()
        try:
            try:
                await self._exchange(self._kept, body, answer, start)
            except (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError):
                if answer.end:
                    raise
                await self._exchange(self._fresh, body, answer, start)
        except httpx2.ConnectError as error:
            answer.error = str(unreachable(self._remote.url, error))
        except httpx2.HTTPError as error:
            answer.error = f"connection lost: {error or type(error).__name__}"
        except RequestFailedError as error:
            answer.error = str(error)
        return answer

    async def _exchange(self, http: httpx2.AsyncClient, body: bytes, answer: Answer, start: float) -> None:
        endpoint = self.dialect.endpoint
        async with http.stream("POST", self._remote.url + endpoint, content=body) as response:
            if response.status_code == 200:
                await _read(response, answer, start, is_chat=endpoint == CHAT)
            else:
                answer.error = f"{response.status_code} {error_text(await response.aread())}"


def _connections(remote: Remote, keep: int | None) -> httpx2.AsyncClient:
    """As many connections as there are requests, of which `keep` (None: all) are used again."""
    return httpx2.AsyncClient(
        headers=remote.headers,
        timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=keep),
        trust_env=False,  # a proxy between would be measured too
    )


async def _read(response: httpx2.Response, answer: Answer, start: float, *, is_chat: bool) -> None:
    """Note when each chunk came.

    The first chunk of a completion tells of a token even if that is half a character; that of a chat may be a role.
    """
    reader, finished = EventReader(), False
    async for data in response.aiter_raw():
        now = time.perf_counter() - start
        for chunk in reader.feed(data):
            if chunk.usage is not None:
                answer.prompt_tokens, answer.output_tokens = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
            if not chunk.choices:
                continue
            choice, answer.end = chunk.choices[0], now
            finished = finished or choice.finish_reason is not None
            if choice.piece or (not answer.chunk_times and (finished or not is_chat)):
                answer.chunk_times.append(now)
    if not finished:
        answer.error = "the stream ended before the answer did"
