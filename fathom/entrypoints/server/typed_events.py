"""Answers as events that say their type, as OpenAI's responses and Anthropic's messages are streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from typing import Any, Protocol

import msgspec

from fathom.entrypoints.server.errors import ApiError
from fathom.entrypoints.server.generation import Job, start
from fathom.entrypoints.server.http import EventStream, event
from fathom.entrypoints.server.serving import Serving
from fathom.outputs import RequestOutput

_SILENCE_S = 10.0


class TypedAssembler(Protocol):
    """What turns outputs into events, each a struct with a `type`."""

    def begin(self) -> list[Any]:
        """The events before any output."""
        ...

    def step(self, prompt: int, output: RequestOutput) -> list[Any]:
        """The events of one output."""
        ...

    def end(self) -> list[Any]:
        """The events after the last output."""
        ...

    def failed(self, error: ApiError) -> bytes:
        """The last event of an answer that failed, as it is sent."""
        ...


async def typed_stream(serving: Serving, job: Job, assembler: TypedAssembler, idle: bytes = b"") -> EventStream:
    """The answer as events. What is wrong with the request is raised now, with its status.

    Args:
        idle: is sent now and then while the prompt waits and is read, so that nobody takes the connection for dead.
    """
    stack = AsyncExitStack()
    outputs = await stack.enter_async_context(start(serving, job))

    async def events() -> AsyncIterator[bytes]:
        yield encoded(assembler.begin())
        first = asyncio.ensure_future(anext(outputs))
        try:
            async for sign in signs_of_life(first, idle, _SILENCE_S):
                yield sign
            if found := assembler.step(*await first):
                yield encoded(found)
        finally:
            first.cancel()
            await asyncio.wait((first,))  # nothing reads the outputs when they are closed
        async for prompt, output in outputs:
            if found := assembler.step(prompt, output):
                yield encoded(found)
        yield encoded(assembler.end())

    return EventStream(events(), stack.aclose, end=b"", encode_error=assembler.failed)


async def signs_of_life(awaited: asyncio.Future[Any], sign: bytes, seconds: float) -> AsyncIterator[bytes]:
    """The sign each time that so many seconds have passed, until what is awaited is there. No sign, no wait."""
    while sign and not (await asyncio.wait((awaited,), timeout=seconds))[0]:
        yield sign


def encoded(events: Iterable[Any]) -> bytes:
    """Events as they are sent."""
    return b"".join([event(_encode(item), item.type) for item in events])


_encode = msgspec.json.Encoder().encode
