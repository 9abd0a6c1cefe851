"""LLM: the offline engine. Prompts in, answers out, in the order of the prompts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from itertools import count
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from fathom.compat.arguments import refuse_if_given
from fathom.compat.methods import absent_method
from fathom.compat.options import check_vllm_options
from fathom.config import DEFAULT_MODEL, EngineConfig
from fathom.entrypoints.processor_names import processor_names
from fathom.entrypoints.progress import Progress, ProgressBar
from fathom.entrypoints.prompts import as_batch, as_conversations, one_for_each
from fathom.errors import ConfigError, ValidationError
from fathom.frontend.boot import uses_own_process
from fathom.frontend.chat_template import render_chat
from fathom.frontend.distinct import map_distinct
from fathom.frontend.engine import LLMEngine
from fathom.frontend.tokenizer.tokenizer import Tokenizer
from fathom.inputs import Prompt
from fathom.metrics import Metric, read_metrics
from fathom.outputs import RequestOutput
from fathom.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from fathom.compat.engine_args import EngineArgs
    from fathom.entrypoints.beam_search import BeamSearchOutput, BeamSearchParams
    from fathom.frontend.metrics import PrometheusObserver

logger = logging.getLogger(__name__)

Message = Mapping[str, Any]


class LLM:
    """An engine for scripts.

        from fathom import LLM, SamplingParams

        with LLM("smollm2-135m") as llm:
            for output in llm.generate(["The sea is", "A fathom is"], SamplingParams(max_tokens=32)):
                print(output.outputs[0].text)

    The engine's process ends with `shutdown`, with the `with` block, or with the script, however that ends.

    Args:
        model: a folder, a .gguf file, a name of the catalogue (`fathom pull --list`) or a Hugging Face repo id.
        seed: makes requests without a seed of their own repeatable from run to run; None: they differ.
        logits_processors: classes, or their names as "module:Class".
        options: any option of `fathom.config`, under vLLM's names.

    Raises:
        TypeError: an option that does not exist; the message has the nearest one that does.
        ConfigError, ModelNotFoundError, UnsupportedModelError, CheckpointError: what cannot be served, and why.
    """

    def __init__(
        self,
        model: str | PathLike[str] = DEFAULT_MODEL,
        *,
        seed: int | None = 0,
        logits_processors: Sequence[str | type] | None = None,
        disable_log_stats: bool = True,
        **options: Any,
    ) -> None:
        options = check_vllm_options(options)
        config = EngineConfig.from_options(model=model, seed=seed, disable_log_stats=disable_log_stats, **options)
        if logits_processors:
            names = processor_names(logits_processors, own_process=uses_own_process(config))
            config = config.replace(logits_processors=names)
        self._metrics = None if disable_log_stats else _make_metrics(config)
        self.llm_engine = LLMEngine(config, self._metrics)
        self._request_numbers = count()
        self._enqueued: dict[str, RequestOutput | None] = {}  # not asked for yet; with the answer, if there is one
        self._lock = threading.Lock()

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLM:
        """An engine with these options, all as they are: the defaults are those of EngineArgs."""
        return cls(**asdict(engine_args))

    # ---------------------------------------------------------------- generation

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: ProgressBar = True,
        lora_request: None = None,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: None = None,
        mm_processor_kwargs: None = None,
    ) -> list[RequestOutput]:
        """Answer prompts; results are in the prompts' order.

        Args:
            prompts: one prompt or a list. A prompt is a text, a list of token ids, or a dictionary with "prompt" or
                "prompt_token_ids" (and "cache_salt").
            sampling_params: for all prompts, or one for each; None: the model's defaults.
            use_tqdm: show a progress bar; or what makes one, with tqdm's arguments.
            priority: with scheduling_policy="priority", lower goes first; for all prompts, or one for each.
            lora_request, tokenization_kwargs, mm_processor_kwargs: vLLM's; only None is accepted.

        Raises:
            ValidationError: something is wrong with a prompt or parameter; nothing was started.
            EngineDeadError: the engine is gone.

        A request that fails inside the engine comes back with finish_reason "error" and the message in `error`,
        beside the others' answers. If the call is interrupted (Ctrl-C), its requests are aborted and the engine
        stays usable.
        """
        refuse_if_given(
            lora_request=lora_request, tokenization_kwargs=tokenization_kwargs, mm_processor_kwargs=mm_processor_kwargs
        )
        batch = as_batch(prompts)
        with self._lock, self._new_requests(len(batch)) as ids:
            self._add(ids, batch, sampling_params, priority)
            return self._run(ids, use_tqdm)

    def enqueue(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora_request: None = None,
        priority: int | Sequence[int] | None = None,
    ) -> list[str]:
        """Hand prompts to the engine, and return at once; `wait_for_completion` has the answers.

        Returns:
            the requests' ids, in the prompts' order.
        """
        refuse_if_given(lora_request=lora_request)
        batch = as_batch(prompts)
        with self._lock, self._new_requests(len(batch)) as ids:
            self._add(ids, batch, sampling_params, priority)
            self._enqueued |= dict.fromkeys(ids)
            return ids

    def wait_for_completion(self, *, use_tqdm: ProgressBar = True) -> list[RequestOutput]:
        """The answers to all that was enqueued since the last time, in its order."""
        with self._lock, self._aborted_on_error(list(self._enqueued)) as ids:
            return self._run(ids, use_tqdm)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        lora_request: None = None,
        use_tqdm: ProgressBar = False,
        concurrency_limit: None = None,
    ) -> list[BeamSearchOutput]:
        """For each prompt the `params.beam_width` likeliest answers that a search finds, the best first.

        Raises:
            ValidationError: something is wrong with a prompt or parameter.
        """
        from fathom.entrypoints.beam_search import search_beams

        refuse_if_given(lora_request=lora_request, concurrency_limit=concurrency_limit)
        return search_beams(self, as_batch(prompts), params, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: ProgressBar = True,
        lora_request: None = None,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: Literal["auto", "string", "openai"] = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: None = None,
        mm_processor_kwargs: None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several, through the model's chat template.

        Args:
            messages: a list of {"role": ..., "content": ...}, or a list of such lists.
            chat_template: a Jinja template instead of the model's own.
            chat_template_content_format: contents get the shape that the template needs, whatever this says.
            add_generation_prompt: end the prompt with the start of the assistant's turn.
            continue_final_message: let the answer go on from the last message instead.
            tools: tool descriptions for the template.
            chat_template_kwargs: further variables of the template.

        Raises:
            as `generate`, and ValidationError with the template's own message if it refuses the conversation.
        """
        tokenizer = self.get_tokenizer()
        if tokenizer is None:
            raise ValidationError("chat needs a tokenizer, and this model has none.", parameter="messages")
        prompts = []
        for conversation in as_conversations(messages):
            text = render_chat(
                tokenizer,
                conversation,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                chat_template_kwargs=chat_template_kwargs,
            )
            # The template wrote the special tokens; the tokenizer must not add them again.
            prompts.append({"prompt": text, "prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)})
        return self.generate(
            prompts,
            sampling_params,
            use_tqdm=use_tqdm,
            lora_request=lora_request,
            priority=priority,
            tokenization_kwargs=tokenization_kwargs,
            mm_processor_kwargs=mm_processor_kwargs,
        )

    # ---------------------------------------------------------------- control

    def get_tokenizer(self) -> Tokenizer | None:
        return self.llm_engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of prompts that bring none: the model's own defaults."""
        return self.llm_engine.get_default_sampling_params()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes."""
        return bool(self.llm_engine.reset_prefix_cache())

    def get_stats(self) -> Any:
        """The scheduler's numbers: requests running and waiting, KV cache in use, prefix hits, preemptions."""
        return self.llm_engine.get_stats()

    def get_metrics(self) -> list[Metric]:
        """The metrics of `fathom serve` as they are now, each a Counter, Gauge or Histogram of `fathom.metrics`.

        Raises:
            ConfigError: the engine was made without disable_log_stats=False.
        """
        if self._metrics is None:
            raise ConfigError(
                "this LLM counts nothing.",
                parameter="disable_log_stats",
                value=True,
                hint="Make it with disable_log_stats=False.",
            )
        return read_metrics(self._metrics.collect())

    def get_world_size(self) -> int:
        """The number of workers."""
        return self.llm_engine.config.parallel.num_workers

    def start_profile(self, folder: str = "fathom-profile") -> None:
        """Record every step with torch's profiler until `stop_profile`."""
        self.llm_engine.start_profile(folder)

    def stop_profile(self) -> list[str]:
        """Write the trace; returns its files."""
        return list(self.llm_engine.stop_profile())

    def collective_rpc(
        self,
        method: str,
        timeout: None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a worker's method by name, with plain data, on every worker; their results, in order of rank.

        Raises:
            ValidationError: no worker has such a method; or a timeout, kwargs or a function, as vLLM takes.
        """
        refuse_if_given(timeout=timeout, kwargs=kwargs or None)
        if not isinstance(method, str):
            raise ValidationError(
                "a function cannot be sent to the workers.",
                parameter="method",
                value=method,
                hint="Name one of the methods of fathom.worker.worker.Worker.",
            )
        return list(self.llm_engine.collective_rpc(method, tuple(args)))

    def shutdown(self) -> None:
        """Stop the engine. May be called twice; happens by itself when the script ends."""
        self.llm_engine.shutdown()

    def __repr__(self) -> str:
        shape = self.llm_engine.model_config
        return f"LLM({self.llm_engine.config.model.model!r}: {shape.architecture}, {shape.num_layers} layers)"

    def __getattr__(self, name: str) -> Any:
        raise absent_method("LLM", name)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.shutdown()

    # ---------------------------------------------------------------- the loop

    @contextmanager
    def _aborted_on_error(self, request_ids: list[str]) -> Iterator[list[str]]:
        """Whatever goes wrong within, Ctrl-C too, is the end of these requests."""
        try:
            yield request_ids
        except BaseException:
            self._abort_quietly(request_ids)
            raise

    def _new_requests(self, number: int) -> AbstractContextManager[list[str]]:
        return self._aborted_on_error([str(next(self._request_numbers)) for _ in range(number)])

    def _add(self, request_ids: list[str], batch: list[Prompt], sampling_params: Any, priority: Any) -> None:
        """Queue prompts, all or none."""
        params = one_for_each("sampling_params", sampling_params, len(batch))
        priorities = one_for_each("priority", 0 if priority is None else priority, len(batch))
        self.llm_engine.add_requests(request_ids, batch, map_distinct(self._final_only, params), priorities)

    def _run(self, request_ids: list[str], use_tqdm: ProgressBar) -> list[RequestOutput]:
        """Step until all of these requests are finished."""
        early = {name: self._enqueued.pop(name, None) for name in request_ids}
        finished = {name: output for name, output in early.items() if output is not None}
        unfinished = set(request_ids) - finished.keys()
        progress = Progress(len(request_ids), use_tqdm)
        try:
            while unfinished:
                for output in self.llm_engine.step():
                    if output.request_id in unfinished:
                        unfinished.remove(output.request_id)
                        finished[output.request_id] = output
                        progress.add(output)
                    elif output.request_id in self._enqueued:
                        self._enqueued[output.request_id] = output
        finally:
            progress.close()
        failed = [output for output in finished.values() if any(answer.error for answer in output.outputs)]
        for output in failed[:3]:
            logger.error("request %s failed: %s", output.request_id, output.outputs[0].error)
        return [finished[request_id] for request_id in request_ids]

    def _final_only(self, given: SamplingParams | None) -> SamplingParams:
        """The parameters, or the defaults, with final outputs only: nothing else is of use here."""
        params = self.get_default_sampling_params() if given is None else given
        if not isinstance(params, SamplingParams):
            return params  # the input processor refuses it
        return msgspec.structs.replace(params, output_kind=RequestOutputKind.FINAL_ONLY)

    def _abort_quietly(self, request_ids: list[str]) -> None:
        try:
            self.llm_engine.abort_request(request_ids)
        except Exception:
            logger.debug("abort after an error failed too", exc_info=True)


def _make_metrics(config: EngineConfig) -> PrometheusObserver:
    from fathom.frontend.metrics import PrometheusObserver  # takes a while to import

    return PrometheusObserver(config.model.model)
