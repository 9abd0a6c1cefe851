"""AsyncLLM: the engine for asyncio. Each request is an async generator; one task hands out what the engine sends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING

from fathom.client.async_mp import AsyncMPClient
from fathom.client.base import AsyncEngineCoreClient
from fathom.client.launch import EngineProcess
from fathom.compat.arguments import refuse_if_given
from fathom.config import EngineConfig
from fathom.errors import ConfigError, EngineDeadError, RequestFailedError
from fathom.frontend import boot
from fathom.frontend.add_message import build_add_message
from fathom.frontend.control import ControlMixin
from fathom.frontend.input_processor import ProcessedRequest
from fathom.frontend.output_collector import OutputCollector
from fathom.frontend.output_processor import OutputProcessor
from fathom.frontend.stats import EngineObserver, StatsLogger
from fathom.frontend.tokenizer.tokenizer import Tokenizer
from fathom.inputs import Prompt
from fathom.log import setup_logging
from fathom.outputs import RequestOutput
from fathom.sampling_params import SamplingParams
from fathom.wire.messages import EngineReady

if TYPE_CHECKING:
    from fathom.compat.engine_args import EngineArgs

logger = logging.getLogger(__name__)

LONG_TEXT = 2_000
"""Characters of a prompt above which it is tokenised in another thread: about a millisecond, a thread's own cost."""


class AsyncLLM(ControlMixin):
    """Make one with `await AsyncLLM.start(config)`, or, blocking the loop meanwhile, with `from_engine_args`.

    `self.config` is what the engine runs with, nothing left open.

    Args:
        front: the name of this caller, if it is one of several of the engine: the seeds that it gives to requests
            without one are its own.
    """

    engine_core: AsyncEngineCoreClient

    def __init__(
        self,
        prepared: boot.Prepared,
        client: AsyncEngineCoreClient,
        tokenizer: Tokenizer | None,
        ready: EngineReady,
        observer: EngineObserver,
        front: str = "",
    ) -> None:
        self.ready = ready
        self.config = boot.fitted_config(prepared.setup.config, ready)
        self.model_config = prepared.setup.model_config
        self.tokenizer = tokenizer
        self.engine_core = client
        self.input_processor = boot.make_input_processor(prepared, self.config, tokenizer, front)
        self.output_processor = OutputProcessor(tokenizer, observer)
        self.stats = StatsLogger()
        self._observer = observer
        self._collectors: dict[str, OutputCollector] = {}
        self._dead: str | None = None  # why the engine is gone
        self._died = asyncio.Event()
        self._handler = asyncio.create_task(self._handle_outputs(), name="output handler")

    @classmethod
    async def start(cls, config: EngineConfig, observer: EngineObserver | None = None) -> AsyncLLM:
        """Start an engine process and wait until it is ready, without blocking the loop.

        Args:
            observer: is told of every step and of every answer's progress.

        Raises:
            whatever is wrong with config or model; the engine's own error if it fails to start.
        """
        _check_own_process(config)
        started = time.perf_counter()
        setup_logging()
        process = EngineProcess(config.parallel)
        try:
            prepared = await asyncio.to_thread(boot.prepare, config)
            client = AsyncMPClient(process)
            await client.start(prepared.setup, boot.ready_timeout_s(config))
            tokenizer = await asyncio.to_thread(boot.load_caller_tokenizer, prepared)
            engine = cls(prepared, client, tokenizer, await client.wait_ready(), observer or EngineObserver())
        except BaseException:
            process.close()
            raise
        logger.info("engine ready in %.2f s", time.perf_counter() - started)
        return engine

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> AsyncLLM:
        """The engine that `start` makes, as vLLM's scripts make one; the running loop stands still until it is ready.

        Raises:
            ConfigError: no loop is running. Else as `start`.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigError(
                "AsyncLLM lives on an asyncio loop, and none is running here.",
                hint="Make it within the coroutine that uses it.",
            ) from None
        config = engine_args.create_engine_config()
        _check_own_process(config)
        setup_logging()
        process = EngineProcess(config.parallel)
        try:
            prepared = boot.prepare(config)
            client = AsyncMPClient(process)
            client.start_blocking(prepared.setup, boot.ready_timeout_s(config))
            tokenizer = boot.load_caller_tokenizer(prepared)
            return cls(prepared, client, tokenizer, client.wait_ready_blocking(), EngineObserver())
        except BaseException:
            process.close()
            raise

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None,
        request_id: str,
        *,
        lora_request: None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the request's outputs as they come, of the kind that sampling_params.output_kind says.

        What comes while the reader is busy waits as one output, so a slow reader gets fewer and longer ones.
        Closing the generator early, or cancelling the task that reads it, aborts the request.

        Raises:
            ValidationError: the prompt or a parameter is wrong. RequestFailedError: this request failed in the
            engine. EngineDeadError: the engine is gone.
        """
        refuse_if_given(lora_request=lora_request, trace_headers=trace_headers, data_parallel_rank=data_parallel_rank)
        (stream,) = await self.add_requests([request_id], [prompt], [sampling_params], [priority])
        try:
            async for output in stream:
                yield output
        finally:
            await stream.aclose()

    async def add_requests(
        self,
        request_ids: list[str],
        prompts: list[Prompt],
        params: list[SamplingParams | None],
        priorities: list[int] | None = None,
    ) -> list[RequestStream]:
        """Start requests, all or none; whoever calls reads or closes each of the streams that come back.

        Raises:
            as `generate`, for what is wrong with a prompt or parameter: before anything is started.
        """
        await self.check_health()
        requests = await self._process(request_ids, prompts, params, priorities)
        engine_ids = self.output_processor.add_requests(requests)
        streams = []
        for request in requests:
            collector = self._collectors[request.request_id] = OutputCollector(request.params.output_kind)
            streams.append(RequestStream(self, request, collector))
        try:
            await self.engine_core.add_requests(build_add_message(requests, engine_ids))
        except BaseException:
            for stream in streams:
                await stream.aclose()
            raise
        return streams

    async def abort(self, request_id: str | Sequence[str], reason: str | None = None) -> None:
        """End requests early: their generators yield a last output, finish_reason "abort". Unknown ids are ignored.

        Args:
            reason: becomes the outputs' stop_reason.
        """
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        engine_ids, outputs = self.output_processor.abort(ids, reason)
        for output in outputs:
            self._deliver(output)
        if engine_ids:
            await self.engine_core.abort_requests(engine_ids)

    async def get_tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer; None if it has none."""
        return self.tokenizer

    @property
    def is_running(self) -> bool:
        """Whether the engine answers; the opposite of `errored`."""
        return self._dead is None

    @property
    def errored(self) -> bool:
        """Whether the engine is gone."""
        return self._dead is not None

    async def wait_dead(self) -> str:
        """Wait until the engine is gone; says why."""
        await self._died.wait()
        return self._dead or ""

    async def check_health(self) -> None:
        """Raise EngineDeadError if the engine is gone."""
        if self._dead is not None:
            raise EngineDeadError(self._dead)

    def shutdown(self) -> None:
        """Stop the engine; open generators raise EngineDeadError. May be called twice."""
        self._handler.cancel()
        self._fail_all("the engine was shut down")
        self.engine_core.close()

    async def _handle_outputs(self) -> None:
        """Take each step's outputs to the generators that wait for them, until the engine is gone."""
        try:
            while True:
                step = await self.engine_core.get_outputs()
                self.stats.add(step)
                result = self.output_processor.process_outputs(step)
                self._observer.step(step)
                for output in result.request_outputs:
                    self._deliver(output)
                if result.to_abort:
                    await self.engine_core.abort_requests(result.to_abort)
        except EngineDeadError as error:
            self._fail_all(error.message)
        except Exception as error:
            logger.exception("the output handler failed")
            self._fail_all(f"the output handler failed: {error}")

    async def _process(
        self,
        request_ids: list[str],
        prompts: list[Prompt],
        params: list[SamplingParams | None],
        priorities: list[int] | None,
    ) -> list[ProcessedRequest]:
        if sum(len(prompt) for prompt in prompts if isinstance(prompt, str)) <= LONG_TEXT:
            return self.input_processor.process(request_ids, prompts, params, priorities)
        requests = await asyncio.to_thread(self.input_processor.process, request_ids, prompts, params, priorities)
        await self.check_health()  # it may have died meanwhile
        return requests

    def _deliver(self, output: RequestOutput) -> None:
        collector = self._collectors.get(output.request_id)
        if collector is None:
            return
        for answer in output.outputs:
            if answer.error is not None:
                collector.put(RequestFailedError(answer.error))
                return
        collector.put(output)

    def _fail_all(self, why: str) -> None:
        self._dead = self._dead or why
        self._died.set()
        for collector in self._collectors.values():
            collector.put(EngineDeadError(self._dead))

    async def close_stream(self, request_id: str) -> None:
        """Forget a request's outputs, and abort it if it still runs."""
        self._collectors.pop(request_id, None)
        if request_id not in self.output_processor:
            return
        engine_ids, _ = self.output_processor.abort([request_id])
        with contextlib.suppress(EngineDeadError):
            await self.engine_core.abort_requests(engine_ids)


def _check_own_process(config: EngineConfig) -> None:
    if config.runtime.multiprocess is False:
        raise ConfigError(
            "AsyncLLM needs an engine process of its own: a step in this one would block the loop.",
            parameter="multiprocess",
            value=False,
            hint="Leave it out, or use LLMEngine.",
        )


class RequestStream:
    """The outputs of one request as they come: an async iterator that ends after the last one.

    request: as the engine got it, every default filled in.
    """

    def __init__(self, engine: AsyncLLM, request: ProcessedRequest, collector: OutputCollector) -> None:
        self.request = request
        self._engine = engine
        self._collector = collector
        self._finished = False

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> RequestOutput:
        """The next output, or all that came meanwhile as one.

        Raises:
            RequestFailedError, EngineDeadError: as AsyncLLM.generate.
        """
        if self._finished:
            raise StopAsyncIteration
        output = await self._collector.get()
        self._finished = output.finished
        return output

    async def aclose(self) -> None:
        """Done with it: a request that has not ended is aborted. May be called twice."""
        self._finished = True
        await self._engine.close_stream(self.request.request_id)
