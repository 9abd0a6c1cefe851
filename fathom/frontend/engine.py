"""LLMEngine: a blocking engine that is driven step by step. Owns input processor, output processor and client."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fathom.client.base import EngineCoreClient
from fathom.client.launch import EngineProcess
from fathom.config import EngineConfig
from fathom.errors import EngineDeadError
from fathom.frontend import boot
from fathom.frontend.add_message import build_add_message
from fathom.frontend.control import ControlMixin
from fathom.frontend.output_processor import OutputProcessor
from fathom.frontend.stats import EngineObserver, StatsLogger
from fathom.frontend.tokenizer.tokenizer import Tokenizer
from fathom.inputs import Prompt
from fathom.log import setup_logging
from fathom.outputs import RequestOutput
from fathom.sampling_params import SamplingParams

if TYPE_CHECKING:
    from fathom.compat.engine_args import EngineArgs

logger = logging.getLogger(__name__)

REQUESTS_PER_MESSAGE = 256
"""Requests sent at once: few messages, yet the engine starts on the first while the rest are encoded."""


class LLMEngine(ControlMixin):
    """Starts an engine and talks to it.

    Args:
        config: as the user wrote it. `self.config` is what the engine runs with, nothing left open.
        observer: is told of every step and of every answer's progress.

    Raises:
        whatever is wrong with config or model; the engine's own error if it fails to start.
    """

    engine_core: EngineCoreClient

    def __init__(self, config: EngineConfig, observer: EngineObserver | None = None) -> None:
        started = time.perf_counter()
        setup_logging()
        process = EngineProcess(config.parallel) if boot.uses_own_process(config) else None
        client: EngineCoreClient | None = None
        try:
            prepared = boot.prepare(config)
            client = EngineCoreClient.make_client(prepared.setup, process, boot.ready_timeout_s(config))
            self.engine_core = client
            self.tokenizer = boot.load_caller_tokenizer(prepared)
            self.ready = self.engine_core.wait_ready()
            self.config = boot.fitted_config(prepared.setup.config, self.ready)
            self.input_processor = boot.make_input_processor(prepared, self.config, self.tokenizer)
        except BaseException:
            for begun in (client, process):
                if begun is not None:
                    begun.close()
            raise
        self.model_config = prepared.setup.model_config
        self._observer = observer or EngineObserver()
        self.output_processor = OutputProcessor(self.tokenizer, self._observer)
        self.stats = StatsLogger()
        logger.info("engine ready in %.2f s", time.perf_counter() - started)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLMEngine:
        """An engine with these options, as vLLM's scripts make one."""
        return cls(engine_args.create_engine_config())

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
    ) -> None:
        """Queue one request; its outputs come from `step`.

        Raises:
            ValidationError: the prompt or a parameter is wrong; nothing was queued.
        """
        self.add_requests([request_id], [prompt], [params], [priority])

    def add_requests(
        self,
        request_ids: Sequence[str],
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams | None],
        priorities: Sequence[int] | None = None,
    ) -> None:
        """Queue a batch: all of it, or, if anything in it is wrong, nothing.

        Raises:
            ValidationError: a prompt or a parameter is wrong, or a request id is in use. EngineDeadError: it is gone.
        """
        requests = self.input_processor.process(request_ids, prompts, params, priorities)
        engine_ids = self.output_processor.add_requests(requests)
        try:
            for start in range(0, len(requests), REQUESTS_PER_MESSAGE):
                end = start + REQUESTS_PER_MESSAGE
                self.engine_core.add_requests(build_add_message(requests[start:end], engine_ids[start:end]))
        except BaseException:
            with contextlib.suppress(EngineDeadError):
                self.abort_request(list(request_ids))
            raise

    def step(self) -> list[RequestOutput]:
        """Wait for one step of the engine and return what it gave; [] without waiting if nothing is unfinished."""
        if not self.has_unfinished_requests():
            return []
        step = self.engine_core.get_outputs()
        self.stats.add(step)
        result = self.output_processor.process_outputs(step)
        self._observer.step(step)
        if result.to_abort:
            self.engine_core.abort_requests(result.to_abort)
        return result.request_outputs

    def abort_request(self, request_ids: str | list[str]) -> list[RequestOutput]:
        """End one or more early; returns their last outputs, finish_reason "abort". Unknown ids are ignored."""
        ids = [request_ids] if isinstance(request_ids, str) else request_ids
        engine_ids, outputs = self.output_processor.abort(ids)
        if engine_ids:
            self.engine_core.abort_requests(engine_ids)
        return outputs

    def has_unfinished_requests(self) -> bool:
        return self.output_processor.num_unfinished > 0

    def get_num_unfinished_requests(self) -> int:
        """Requests under way, each once however many answers it has."""
        return len(self.output_processor.unfinished_ids())

    def get_tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer; None if it has none."""
        return self.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """A copy of the parameters of requests that bring none."""
        return self.input_processor.default_params.clone()

    def shutdown(self) -> None:
        """Stop the engine and free what it held; later calls raise EngineDeadError. May be called twice."""
        self.engine_core.close()

    def __enter__(self) -> LLMEngine:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.shutdown()
