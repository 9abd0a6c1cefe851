"""Running a request's prompts in the engine: places, deadline, outputs of several prompts as one stream, the answer."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fathom.entrypoints.server.http import Emit, EventStream, event, json_response, unless_gone
from fathom.entrypoints.server.serving import Serving
from fathom.entrypoints.server.tracing import RequestTrace
from fathom.errors import FathomError
from fathom.frontend.async_engine import RequestStream
from fathom.outputs import RequestOutput
from fathom.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

Chunk = TypeVar("Chunk", bound=msgspec.Struct)


@dataclass(frozen=True)
class Job:
    """What the engine is to do for a request: prompts with their parameters, and until when."""

    id: str
    prompts: list[dict[str, object]]
    params: list[SamplingParams]
    priority: int = 0
    seconds: float | None = None
    user: str | None = None
    trace: RequestTrace | None = None


class Outputs:
    """What comes of a job.

    stream: the outputs of all its prompts, as they come.
    """

    def __init__(self, streams: list[RequestStream]) -> None:
        self.stream: AsyncIterator[RequestOutput] = streams[0] if len(streams) == 1 else _merged(streams)
        self._numbers = {stream.request.request_id: number for number, stream in enumerate(streams)}

    def prompt_of(self, output: RequestOutput) -> int:
        """The number of the prompt whose output this is."""
        return self._numbers[output.request_id]


@asynccontextmanager
async def start(serving: Serving, job: Job) -> AsyncIterator[Outputs]:
    """Hand a job to the engine; on leaving, what has not ended is aborted.

    Raises:
        ApiError, ValidationError, EngineDeadError: before anything is started.
    """
    began = time.monotonic()
    answers = sum(params.n for params in job.params)
    unique = uuid.uuid4().hex[:12]
    ids = [f"{job.id}-{unique}-{number}" for number in range(len(job.prompts))]
    streams: list[RequestStream] = []
    with serving.admission.answers(answers):
        serving.admission.expect(
            {name: len(prompt["prompt_token_ids"]) for name, prompt in zip(ids, job.prompts, strict=True)}  # type: ignore[arg-type]
        )
        async with serving.running(ids, job.seconds):
            if job.trace is not None:
                job.trace.follow(job.id, ids, job.params)
            try:
                streams = await serving.engine.add_requests(
                    ids,
                    list(job.prompts),
                    list(job.params),
                    [job.priority] * len(ids),
                )
                yield Outputs(streams)
            finally:
                gone = any(name in serving.engine.output_processor for name in ids)
                for stream in streams:
                    await stream.aclose()
                if job.trace is not None:
                    job.trace.forget(ids)
                _log(serving, job, answers, time.monotonic() - began, gone)


def _log(serving: Serving, job: Job, answers: int, seconds: float, gone: bool) -> None:
    if gone:
        why = "the engine is gone" if serving.engine.errored else "the client is gone, or the answer could not be sent"
        logger.info("%s aborted after %.3f s: %s", job.id, seconds, why)
    elif serving.settings.log_requests:
        logger.info(
            "%s done in %.3f s: %d prompt(s), %d answer(s)%s",
            job.id,
            seconds,
            len(job.prompts),
            answers,
            "" if job.user is None else f", user {job.user!r}",
        )


async def _merged(streams: list[RequestStream]) -> AsyncIterator[RequestOutput]:
    """The outputs of several streams, each as soon as it is there. A reader who is slow holds the streams up."""
    found: asyncio.Queue[RequestOutput | FathomError | None] = asyncio.Queue(maxsize=len(streams))

    async def pump(stream: RequestStream) -> None:
        try:
            async for output in stream:
                await found.put(output)
            await found.put(None)
        except FathomError as error:
            await found.put(error)

    tasks = [asyncio.ensure_future(pump(stream)) for stream in streams]
    try:
        left = len(streams)
        while left:
            output = await found.get()
            if isinstance(output, FathomError):
                raise output
            if output is None:
                left -= 1
            else:
                yield output
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Assembler(Protocol[Chunk]):
    """What turns outputs into chunks; see assembly."""

    def step(self, prompt: int, output: RequestOutput) -> list[Chunk]:
        """The chunks of one output of a prompt."""
        ...

    def end(self) -> list[Chunk]:
        """The chunks after the last output."""
        ...


async def whole(
    serving: Serving, http: Request, job: Job, assembler: Assembler[Chunk], fold: Callable[[list[Chunk]], Any]
) -> Response:
    """The answer in one piece: the fold of the chunks that would be streamed.

    Raises:
        ClientGone: the client did not wait for it; its work has been aborted.
    """

    async def run() -> Response:
        chunks: list[Chunk] = []
        async with start(serving, job) as outputs:
            async for output in outputs.stream:
                chunks += assembler.step(outputs.prompt_of(output), output)
        return json_response(fold(chunks + assembler.end()))

    return await unless_gone(http.receive, run())


async def streamed(serving: Serving, job: Job, assembler: Assembler[Chunk]) -> EventStream:
    """The answer as server-sent events. What is wrong with the request is raised now, with its status."""
    stack = AsyncExitStack()
    outputs = await stack.enter_async_context(start(serving, job))

    async def events(emit: Emit) -> None:
        async for output in outputs.stream:
            if chunks := assembler.step(outputs.prompt_of(output), output):
                await emit(_encoded(chunks))
        if chunks := assembler.end():
            await emit(_encoded(chunks))

    return EventStream(events, stack.aclose)


def _encoded(chunks: list[Chunk]) -> bytes:
    return b"".join([event(_encode(chunk)) for chunk in chunks])


_encode = msgspec.json.Encoder().encode
