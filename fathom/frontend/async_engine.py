"""AsyncLLM: the engine for asyncio. Each request is an async generator; one task hands out what the engine sends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from typing import Any

from fathom.client.async_mp import AsyncMPClient
from fathom.client.base import AsyncEngineCoreClient
from fathom.client.launch import EngineProcess
from fathom.config import EngineConfig
from fathom.errors import ConfigError, EngineDeadError, FathomError, RequestFailedError
from fathom.frontend import boot
from fathom.frontend.add_message import build_add_message
from fathom.frontend.control import ControlMixin
from fathom.frontend.input_processor import Prompt
from fathom.frontend.output_processor import OutputProcessor
from fathom.frontend.stats import StatsLogger
from fathom.log import setup_logging
from fathom.outputs import RequestOutput
from fathom.params import SamplingParams

logger = logging.getLogger(__name__)

_Queue = asyncio.Queue[RequestOutput | FathomError]


class AsyncLLM(ControlMixin):
    """Make one with `await AsyncLLM.start(config)`.

    `self.config` is what the engine runs with, nothing left open.
    """

    engine_core: AsyncEngineCoreClient

    def __init__(self, prepared: boot.Prepared, client: AsyncEngineCoreClient, tokenizer: Any, ready: Any) -> None:
        self.ready = ready
        self.config = boot.fitted_config(prepared.setup.config, ready)
        self.model_config = prepared.setup.model_config
        self.tokenizer = tokenizer
        self.engine_core = client
        self.input_processor = boot.make_input_processor(prepared, self.config, tokenizer)
        self.output_processor = OutputProcessor(tokenizer)
        self.stats = StatsLogger()
        self._queues: dict[str, _Queue] = {}
        self._dead: str | None = None  # why the engine is gone
        self._handler = asyncio.create_task(self._handle_outputs(), name="output handler")

    @classmethod
    async def start(cls, config: EngineConfig) -> AsyncLLM:
        """Start an engine process and wait until it is ready, without blocking the loop.

        Raises:
            whatever is wrong with config or model; the engine's own error if it fails to start.
        """
        if config.runtime.multiprocess is False:
            raise ConfigError(
                "AsyncLLM needs an engine process of its own: a step in this one would block the loop.",
                parameter="multiprocess",
                value=False,
                hint="Leave it out, or use LLMEngine.",
            )
        started = time.perf_counter()
        setup_logging()
        process = EngineProcess()
        try:
            prepared = await asyncio.to_thread(boot.prepare, config)
            client = AsyncMPClient(process)
            await client.start(prepared.setup, boot.ready_timeout_s(config))
            tokenizer = await asyncio.to_thread(boot.load_caller_tokenizer, prepared)
            engine = cls(prepared, client, tokenizer, await client.wait_ready())
        except BaseException:
            process.close()
            raise
        logger.info("engine ready in %.2f s", time.perf_counter() - started)
        return engine

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        request_id: str,
        *,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the request's outputs as they come, of the kind that params.output_kind says.

        Closing the generator early, or cancelling the task that reads it, aborts the request.

        Raises:
            ValidationError: the prompt or a parameter is wrong. RequestFailedError: this request failed in the
            engine. EngineDeadError: the engine is gone.
        """
        await self.check_health()
        requests = self.input_processor.process([request_id], [prompt], [params], [priority])
        engine_ids = self.output_processor.add_requests(requests)
        queue: _Queue = asyncio.Queue()
        self._queues[request_id] = queue
        try:
            await self.engine_core.add_requests(build_add_message(requests, engine_ids))
            finished = False
            while not finished:
                output = await queue.get()
                if isinstance(output, FathomError):
                    raise output
                finished = output.finished
                yield output
        finally:
            self._queues.pop(request_id, None)
            if request_id in self.output_processor:
                await self._abort_quietly(request_id)

    async def abort(self, request_id: str) -> None:
        """End a request early: its generator yields a last output, finish_reason "abort". Unknown ids are ignored."""
        engine_ids, outputs = self.output_processor.abort([request_id])
        for output in outputs:
            self._deliver(output)
        if engine_ids:
            await self.engine_core.abort_requests(engine_ids)

    @property
    def errored(self) -> bool:
        """Whether the engine is gone."""
        return self._dead is not None

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
                for output in result.request_outputs:
                    self._deliver(output)
                if result.to_abort:
                    await self.engine_core.abort_requests(result.to_abort)
        except EngineDeadError as error:
            self._fail_all(error.message)
        except Exception as error:
            logger.exception("the output handler failed")
            self._fail_all(f"the output handler failed: {error}")

    def _deliver(self, output: RequestOutput) -> None:
        queue = self._queues.get(output.request_id)
        if queue is None:
            return
        failed = next((answer for answer in output.outputs if answer.error is not None), None)
        queue.put_nowait(output if failed is None else RequestFailedError(failed.error or ""))

    def _fail_all(self, why: str) -> None:
        self._dead = self._dead or why
        for queue in self._queues.values():
            queue.put_nowait(EngineDeadError(self._dead))

    async def _abort_quietly(self, request_id: str) -> None:
        engine_ids, _ = self.output_processor.abort([request_id])
        try:
            await self.engine_core.abort_requests(engine_ids)
        except EngineDeadError:
            return
