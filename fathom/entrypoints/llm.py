"""LLM: the offline engine. Prompts in, answers out, in the order of the prompts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from numbers import Integral
from os import PathLike
from typing import Any

import msgspec
from tqdm import tqdm

from fathom.config import DEFAULT_MODEL, EngineConfig
from fathom.entrypoints.compat import check_vllm_options
from fathom.entrypoints.processor_names import processor_names
from fathom.errors import ValidationError
from fathom.frontend.boot import uses_own_process
from fathom.frontend.chat_template import render_chat
from fathom.frontend.distinct import map_distinct
from fathom.frontend.engine import LLMEngine
from fathom.frontend.input_processor import Prompt
from fathom.frontend.tokenizer.tokenizer import Tokenizer
from fathom.outputs import RequestOutput
from fathom.params import RequestOutputKind, SamplingParams

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
        self.llm_engine = LLMEngine(config)
        self._request_numbers = count()
        self._lock = threading.Lock()

    # ---------------------------------------------------------------- generation

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: int | Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts; results are in the prompts' order.

        Args:
            prompts: one prompt or a list. A prompt is a text, a list of token ids, or a dictionary with "prompt" or
                "prompt_token_ids" (and "cache_salt").
            sampling_params: for all prompts, or one for each; None: the model's defaults.
            use_tqdm: show a progress bar.
            priority: with scheduling_policy="priority", lower goes first; for all prompts, or one for each.

        Raises:
            ValidationError: something is wrong with a prompt or parameter; nothing was started.
            EngineDeadError: the engine is gone.

        A request that fails inside the engine comes back with finish_reason "error" and the message in `error`,
        beside the others' answers. If the call is interrupted (Ctrl-C), its requests are aborted and the engine
        stays usable.
        """
        batch = _as_batch(prompts)
        params = _one_for_each("sampling_params", sampling_params, len(batch))
        priorities = _one_for_each("priority", 0 if priority is None else priority, len(batch))
        with self._lock:
            ids = [str(next(self._request_numbers)) for _ in batch]
            try:
                self.llm_engine.add_requests(ids, batch, map_distinct(self._final_only, params), priorities)
                return self._run(ids, use_tqdm)
            except BaseException:
                self._abort_quietly(ids)
                raise

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        priority: int | Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several, through the model's chat template.

        Args:
            messages: a list of {"role": ..., "content": ...}, or a list of such lists.
            chat_template: a Jinja template instead of the model's own.
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
        for conversation in _as_conversations(messages):
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
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, priority=priority)

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

    def start_profile(self, folder: str = "fathom-profile") -> None:
        """Record every step with torch's profiler until `stop_profile`."""
        self.llm_engine.start_profile(folder)

    def stop_profile(self) -> list[str]:
        """Write the trace; returns its files."""
        return list(self.llm_engine.stop_profile())

    def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        """Call a worker's method by name on every worker."""
        return list(self.llm_engine.collective_rpc(method, args))

    def shutdown(self) -> None:
        """Stop the engine. May be called twice; happens by itself when the script ends."""
        self.llm_engine.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.shutdown()

    # ---------------------------------------------------------------- the loop

    def _run(self, request_ids: list[str], use_tqdm: bool) -> list[RequestOutput]:
        """Step until all of these requests are finished."""
        finished: dict[str, RequestOutput] = {}
        unfinished = set(request_ids)
        progress = _Progress(len(request_ids), use_tqdm)
        try:
            while unfinished:
                for output in self.llm_engine.step():
                    if output.request_id in unfinished:
                        unfinished.remove(output.request_id)
                        finished[output.request_id] = output
                        progress.add(output)
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


class _Progress:
    """A bar of finished requests with tokens a second."""

    def __init__(self, total: int, enabled: bool) -> None:
        self._bar = tqdm(total=total, desc="Generating", unit="req", dynamic_ncols=True, disable=not enabled)
        self._num_in = 0
        self._num_out = 0

    def add(self, output: RequestOutput) -> None:
        self._num_in += len(output.prompt_token_ids)
        self._num_out += sum(len(answer.token_ids) for answer in output.outputs)
        elapsed = self._bar.format_dict["elapsed"]
        if elapsed:
            self._bar.set_postfix_str(
                f"in {self._num_in / elapsed:.0f} tok/s, out {self._num_out / elapsed:.0f} tok/s",
                refresh=False,
            )
        self._bar.update()

    def close(self) -> None:
        self._bar.close()


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many: a text, a dictionary and a list of integers are one."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    given: Any = prompts.tolist() if hasattr(prompts, "tolist") else prompts  # an array or a tensor
    if isinstance(given, (bytes, bytearray)) or not isinstance(given, Iterable):
        raise ValidationError(
            f"prompts must be a text, token ids, a dictionary or a list of these, got {type(prompts).__name__}.",
            parameter="prompts",
            value=prompts,
        )
    batch = list(given)
    return [batch] if batch and all(isinstance(item, Integral) for item in batch) else batch


def _as_conversations(messages: Any) -> Sequence[Any]:
    """One conversation or many: a list of lists is many."""
    many = isinstance(messages, Sequence) and len(messages) > 0 and isinstance(messages[0], (list, tuple))
    return messages if many else [messages]


def _one_for_each(name: str, value: Any, length: int) -> list[Any]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != length:
            raise ValidationError(
                f"{name} has {len(value)} entries for {length} prompts.",
                parameter=name,
                value=len(value),
                hint="Give one for all, or one for each.",
            )
        return list(value)
    return [value] * length
