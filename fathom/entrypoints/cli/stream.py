"""Conversation: an engine, the turns so far, and answers printed as they come. What `generate` and `chat` share."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from itertools import count
from typing import Any

from fathom.config import EngineConfig
from fathom.errors import RequestFailedError, ValidationError
from fathom.frontend.chat_template import render_chat
from fathom.frontend.engine import LLMEngine
from fathom.inputs import Prompt
from fathom.sampling_params import RequestOutputKind, SamplingParams

CALM = 0.2
"""Temperature at a prompt where the model names none: people who type a question want the likely answer."""


@dataclass(frozen=True)
class Answer:
    """text: the whole answer. finish_reason: why it ended. summary: tokens, times and that reason, in one line."""

    text: str
    finish_reason: str | None
    summary: str = ""


class Conversation:
    """Turns of one conversation with one engine."""

    def __init__(self, config: EngineConfig, system: str | None = None) -> None:
        started = time.perf_counter()
        self._engine = LLMEngine(config)
        self._boot_seconds = time.perf_counter() - started
        self._numbers = count()
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []

    def ask(self, question: str, params: dict[str, Any]) -> Answer:
        """Add a user's turn, print the model's, and remember both; of an answer that is interrupted, what was printed.

        Raises:
            RequestFailedError: the engine could not answer. KeyboardInterrupt, as it came. A turn without a word of an
            answer is forgotten.
        """
        tokenizer = self._engine.tokenizer
        if tokenizer is None:
            raise ValidationError("a question needs a tokenizer, and this model has none.", parameter="prompt")
        messages = [*self.messages, {"role": "user", "content": question}]
        if tokenizer.chat_template is None and len(messages) == 1:
            return self.complete(question, params)
        text = render_chat(tokenizer, messages)
        pieces: list[str] = []
        try:
            prompt = {"prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)}
            answer = self._stream(prompt, params, pieces)
        except KeyboardInterrupt:
            self.messages = with_what_was_said(self.messages, messages, pieces)
            raise
        self.messages = [*messages, {"role": "assistant", "content": answer.text}]
        return answer

    def complete(self, text: str, params: dict[str, Any]) -> Answer:
        """Continue a text as it is."""
        return self._stream(text, params, [])

    def close(self) -> None:
        self._engine.shutdown()

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()

    def _stream(self, prompt: Prompt, overrides: dict[str, Any], pieces: list[str]) -> Answer:
        """Print an answer as it comes; what is printed is added to `pieces`."""
        params = _merge(self._engine.get_default_sampling_params(), overrides)
        request_id = f"turn-{next(self._numbers)}"
        began = time.perf_counter()
        self._engine.add_request(request_id, prompt, params)
        first_token, num_tokens, output = began, 0, None
        try:
            while self._engine.has_unfinished_requests():
                for output in self._engine.step():
                    answer = output.outputs[0]
                    if answer.error is not None:
                        raise RequestFailedError(answer.error)
                    if num_tokens == 0:
                        first_token = time.perf_counter()
                    num_tokens += len(answer.token_ids)
                    pieces.append(answer.text)
                    sys.stdout.write(answer.text)
                    sys.stdout.flush()
        except BaseException:
            self._engine.abort_request([request_id])
            raise
        finally:
            sys.stdout.write("\n")
            sys.stdout.flush()
        assert output is not None
        reason = output.outputs[0].finish_reason
        summary = self._summary(len(output.prompt_token_ids), num_tokens, began, first_token, reason)
        return Answer("".join(pieces), reason, summary)

    def _summary(self, num_prompt: int, num_tokens: int, began: float, first: float, reason: str | None) -> str:
        rate = (num_tokens - 1) / max(time.perf_counter() - first, 1e-9)
        return (
            f"[{num_prompt} tokens in, {num_tokens} out ({reason}); ready in {self._boot_seconds:.1f} s, "
            f"first token after {first - began:.2f} s, then {rate:.1f} tokens/s]"
        )


def with_what_was_said(
    before: list[dict[str, Any]], asked: list[dict[str, Any]], pieces: list[str]
) -> list[dict[str, Any]]:
    """The messages after an interrupted answer: those of the question and what came, or those before if nothing did."""
    said = "".join(pieces)
    return [*asked, {"role": "assistant", "content": said}] if said else before


def quiet_unless(verbose: bool) -> None:
    """Only warnings from here and from the engine's process, unless the user asked or set a level."""
    if not verbose:
        os.environ.setdefault("FATHOM_LOGGING_LEVEL", "WARNING")


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of the sampling parameters that matter at a prompt."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--max-tokens", type=int, help="most tokens of an answer (default: 256)")
    group.add_argument("--temperature", type=float, help=f"0 is greedy (default: the model's, else {CALM})")
    group.add_argument("--top-p", type=float)
    group.add_argument("--top-k", type=int)
    group.add_argument("--min-p", type=float)
    group.add_argument("--repetition-penalty", type=float)
    group.add_argument("--sampling-seed", type=int, help="seed of each answer; the same number, the same answer")
    group.add_argument("--stop", action="append", help="end the answer before this text; may be given several times")


def sampling_from_flags(options: argparse.Namespace) -> dict[str, Any]:
    """The sampling parameters that were given, checked, so that a wrong one is not found after minutes of loading."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    given["max_tokens"] = 256 if options.max_tokens is None else options.max_tokens
    if options.sampling_seed is not None:
        given["seed"] = options.sampling_seed
    SamplingParams(**given)
    return given


def _merge(defaults: SamplingParams, given: dict[str, Any]) -> SamplingParams:
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    fields = {name: getattr(defaults, name) for name in names}
    if fields["temperature"] == SamplingParams().temperature:
        fields["temperature"] = CALM
    return SamplingParams(**(fields | given), output_kind=RequestOutputKind.DELTA)
