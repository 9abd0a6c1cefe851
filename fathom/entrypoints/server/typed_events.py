"""Answers as events that say their type, as OpenAI's responses and Anthropic's messages are streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from fathom.entrypoints.server.assembly.blocks import BlockAssembler
from fathom.entrypoints.server.generation import Job, start
from fathom.entrypoints.server.http import Emit, EventStream, event
from fathom.entrypoints.server.serving import Serving

_SILENCE_S = 10.0


async def typed_stream(serving: Serving, job: Job, assembler: BlockAssembler, idle: bytes = b"") -> EventStream:
    """The answer as events. What is wrong with the request is raised now, with its status.

    Args:
        idle: is sent now and then while the prompt waits and is read, so that nobody takes the connection for dead.
    """
    stack = AsyncExitStack()
    outputs = await stack.enter_async_context(start(serving, job))

    async def events(emit: Emit) -> None:
        await emit(encoded(assembler.begin()))
        first = asyncio.ensure_future(anext(outputs.stream))
        try:
            async for sign in signs_of_life(first, idle, _SILENCE_S):
                await emit(sign)
            if found := assembler.step(0, await first):
                await emit(encoded(found))
        finally:
            first.cancel()
            await asyncio.wait((first,))  # nothing reads the outputs when they are closed
        async for output in outputs.stream:
            if found := assembler.step(0, output):
                await emit(encoded(found))
        await emit(encoded(assembler.end()))

    return EventStream(events, stack.aclose, end=b"", encode_error=assembler.failed)


async def signs_of_life(awaited: asyncio.Future[Any], sign: bytes, seconds: float) -> AsyncIterator[bytes]:
    """The sign each time that so many seconds have passed, until what is awaited is there. No sign, no wait."""
    while sign and not (await asyncio.wait((awaited,), timeout=seconds))[0]:
        yield sign


def encoded(events: Iterable[Any]) -> bytes:
    """Events as they are sent."""
    return b"".join([event(_encode(item), item.type) for item in events])


_encode = msgspec.json.Encoder().encode
