"""The clients of a soak: they ask, go away if that is their part, and remember what the answer counted."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx2

from benchmarks.soak.workload import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Asked, Workload

_TIMEOUT_S = 3600.0
"""Priorities are strict: on a slow machine a request of low priority may wait for the whole of a warm-up."""
_NO_PATIENCE_S = 0.005


@dataclass(frozen=True)
class Seen:
    """What a client saw of its request. status: None if it went away before there was one.

    reasons: why each answer ended, in the engine's words; none if the client did not wait for it, or was refused.
    problem: what should not have been.
    """

    asked: Asked
    status: int | None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasons: tuple[str, ...] = ()
    problem: str | None = None


async def ask_all(url: str, workload: Workload, numbers: range, concurrency: int, done: Callable[[Seen], None]) -> None:
    """Send requests, so many at once, and tell what became of each when it has ended."""
    left = iter(numbers)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=concurrency)
    async with httpx2.AsyncClient(base_url=url, timeout=_TIMEOUT_S, limits=limits) as http:

        async def client() -> None:
            for number in left:
                done(await _ask(http, workload[number]))

        await asyncio.gather(*(client() for _ in range(concurrency)))


async def _ask(http: httpx2.AsyncClient, asked: Asked) -> Seen:
    try:
        seconds = None
        if asked.left == "queue":
            seconds = _NO_PATIENCE_S
        elif asked.left == "decode" and not asked.streamed:
            seconds = asked.patience
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await _wait(http, asked)
        return Seen(asked, None)
    except (httpx2.HTTPError, ValueError, KeyError, TypeError) as error:
        return Seen(asked, None, problem=f"{type(error).__name__}: {error}")


async def _wait(http: httpx2.AsyncClient, asked: Asked) -> Seen:
    headers = {"Content-Type": "application/json"}
    async with http.stream("POST", asked.path, content=asked.content, headers=headers) as answer:
        status = answer.status_code
        if status != 200:
            await answer.aread()
            wrong = asked.valid or not 400 <= status < 500
            return Seen(asked, status, problem=f"{status} {answer.text[:300]}" if wrong else None)
        if not asked.valid:
            return Seen(asked, status, problem="an invalid request was answered")
        if asked.left == "prefill":
            return Seen(asked, status)
        if not asked.streamed:
            await answer.aread()
            return _counted(asked, answer.json())
        return await _read_events(answer, asked)


async def _read_events(answer: httpx2.Response, asked: Asked) -> Seen:
    """The whole stream; of one whose client goes away, only some events."""
    summary = _Summary(asked.path)
    count = 0
    async for event in _events(answer):
        summary.add(event)
        count += 1
        if asked.left is not None and count >= asked.patience:
            return Seen(asked, 200)
    return _counted(asked, summary.whole())


async def _events(answer: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            event = json.loads(line[6:])
            if event.get("error") or event.get("type") == "response.failed":
                raise ValueError(f"an error within the stream: {line[:300]}")
            yield event


class _Summary:
    """The usage and the ends of a stream, put together as the answer in one piece has them."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._last: dict[str, Any] = {}
        self._choices: list[dict[str, Any]] = []
        self._usage: dict[str, Any] = {}
        self._stop: dict[str, Any] = {}

    def add(self, event: dict[str, Any]) -> None:
        self._last = event
        self._usage = event.get("usage") or self._usage
        self._choices += [choice for choice in event.get("choices", ()) if choice["finish_reason"] is not None]
        if event.get("type") == "message_delta":
            self._stop = event["delta"]

    def whole(self) -> dict[str, Any]:
        if self._path == RESPONSES:
            return dict(self._last["response"])
        return {"usage": self._usage, "choices": self._choices, **self._stop}


def _counted(asked: Asked, answer: dict[str, Any]) -> Seen:
    """What an answer says of itself."""
    usage, reasons = answer["usage"], _READ_REASONS[asked.path](answer)
    if asked.path in (COMPLETIONS, CHAT):
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return Seen(asked, 200, usage["prompt_tokens"], usage["completion_tokens"], cached, reasons)
    if asked.path == RESPONSES:
        cached = usage["input_tokens_details"]["cached_tokens"]
        return Seen(asked, 200, usage["input_tokens"], usage["output_tokens"], cached, reasons)
    cached = usage["cache_read_input_tokens"]
    return Seen(asked, 200, usage["input_tokens"] + cached, usage["output_tokens"], cached, reasons)


def _reasons_of_choices(answer: dict[str, Any]) -> tuple[str, ...]:
    return tuple("stop" if r == "tool_calls" else r for r in (c["finish_reason"] for c in answer["choices"]))


def _reasons_of_response(answer: dict[str, Any]) -> tuple[str, ...]:
    if answer["status"] == "completed":
        return ("stop",)
    return ("length" if answer["incomplete_details"]["reason"] == "max_output_tokens" else "abort",)


def _reasons_of_message(answer: dict[str, Any]) -> tuple[str, ...]:
    return ("length" if answer["stop_reason"] in ("max_tokens", "model_context_window_exceeded") else "stop",)


_READ_REASONS: dict[str, Callable[[dict[str, Any]], tuple[str, ...]]] = {
    COMPLETIONS: _reasons_of_choices,
    CHAT: _reasons_of_choices,
    RESPONSES: _reasons_of_response,
    MESSAGES: _reasons_of_message,
}
