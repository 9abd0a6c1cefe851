"""Answers of /v1/completions: outputs -> chunks -> one answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from msgspec import UNSET

from fathom.entrypoints.server.assembly.common import (
    Envelope,
    Explainer,
    UsageCounter,
    parts_by_answer,
    prompt_logprobs_field,
)
from fathom.entrypoints.server.assembly.logprobs import TextOffsets, TokenNames, completion_logprobs
from fathom.entrypoints.server.protocol.completion import Completion, CompletionChoice, CompletionLogprobs
from fathom.outputs import CompletionOutput, RequestOutput


@dataclass(frozen=True)
class CompletionOptions:
    """What a request wants to see.

    best_of: answers of which the n best are taken. prompt_only: max_tokens is 0. names: None without logprobs.
    """

    n: int
    best_of: int = 0
    echo: bool = False
    prompt_only: bool = False
    names: TokenNames | None = None
    top_logprobs: int = 0
    skip_special_tokens: bool = True
    token_ids: bool = False
    prompt_logprobs: bool = False
    explainer: Explainer | None = None


@dataclass
class _Choice:
    offsets: TextOffsets
    begun: bool = False


class CompletionAssembler:
    """Turns the outputs of a request's prompts into chunks.

    Args:
        envelope: what all chunks repeat.
        options: what the request wants to see.
        texts: of each prompt, for echo.
        prompt_lengths: tokens of each prompt.
    """

    def __init__(
        self, envelope: Envelope, options: CompletionOptions, texts: list[str], prompt_lengths: list[int]
    ) -> None:
        self._envelope = envelope
        self._options = options
        self._texts = texts
        self._usage = UsageCounter(prompt_lengths)
        self._choices = [[_Choice(self._offsets(len(text))) for _ in range(options.n)] for text in texts]

    def _offsets(self, start: int) -> TextOffsets:
        names = self._options.names
        return TextOffsets(None if names is None else names.tokenizer, self._options.skip_special_tokens, start)

    def step(self, prompt: int, output: RequestOutput) -> list[Completion]:
        """The chunks of one output (of deltas) of the prompt of that number."""
        self._usage.add(prompt, output)
        if self._options.prompt_only:
            self._usage.drop_generated()
        answers = output.outputs
        if self._options.best_of > self._options.n:
            answers = best_answers(answers, self._options.n)
        return [self._chunk(choice) for answer in answers if (choice := self._choice(prompt, output, answer))]

    def end(self) -> list[Completion]:
        """The chunk with the usage, if one is wanted."""
        return [self._chunk(None)] if self._envelope.include_usage else []

    def _chunk(self, choice: CompletionChoice | None) -> Completion:
        envelope = self._envelope
        with_usage = choice is None or envelope.continuous_usage
        return Completion(
            id=envelope.id,
            created=envelope.created,
            model=envelope.model,
            choices=[] if choice is None else [choice],
            usage=self._usage.usage() if with_usage else envelope.no_usage,
            system_fingerprint=envelope.fingerprint,
        )

    def _choice(self, prompt: int, output: RequestOutput, answer: CompletionOutput) -> CompletionChoice | None:
        """What is new of one answer, if it is worth a chunk."""
        options, state = self._options, self._choices[prompt][answer.index]
        first, state.begun = not state.begun, True
        text = "" if options.prompt_only else answer.text
        if first and options.echo:
            text = self._texts[prompt] + text
        choice = CompletionChoice(index=prompt * options.n + answer.index, text=text)
        if options.names is not None:
            choice.logprobs = self._logprobs(options.names, prompt, output, answer, first)
        if options.token_ids:
            choice.token_ids = [] if options.prompt_only else list(answer.token_ids)
            if first:
                choice.prompt_token_ids = output.prompt_token_ids
        if first and options.prompt_logprobs:
            choice.prompt_logprobs = prompt_logprobs_field(output.prompt_logprobs)
        if answer.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = answer.finish_reason, answer.stop_reason
            if options.prompt_only and answer.finish_reason == "stop":
                choice.finish_reason, choice.stop_reason = "length", None
            if options.explainer is not None:
                choice.explain = options.explainer.explain(output)
        shows = text or choice.finish_reason or first or (answer.token_ids and (options.names or options.token_ids))
        return choice if shows else None

    def _logprobs(
        self, names: TokenNames, prompt: int, output: RequestOutput, answer: CompletionOutput, first: bool
    ) -> CompletionLogprobs:
        """The lists for what is new: with echo the prompt's, then the answer's."""
        state = self._choices[prompt][answer.index]
        parts: list[CompletionLogprobs] = []
        top = self._options.top_logprobs
        if first and self._options.echo and output.prompt_logprobs is not None:
            offset_of = partial(TextOffsets(names.tokenizer, False).next_of, text=self._texts[prompt])
            parts.append(completion_logprobs(output.prompt_logprobs, output.prompt_token_ids, top, names, offset_of))
        if answer.logprobs is not None and not self._options.prompt_only:
            parts.append(completion_logprobs(answer.logprobs, answer.token_ids, top, names, state.offsets.next))
        return join_logprobs(parts)


def best_answers(answers: list[CompletionOutput], n: int) -> list[CompletionOutput]:
    """The n answers of best mean logprob, best first, and numbered anew."""
    ranked = sorted(answers, key=lambda answer: -(answer.cumulative_logprob or 0.0) / max(1, len(answer.token_ids)))
    return [replace(answer, index=index) for index, answer in enumerate(ranked[:n])]


def join_logprobs(parts: Iterable[CompletionLogprobs]) -> CompletionLogprobs:
    """The lists of several, one after the other."""
    whole = CompletionLogprobs([], [], [], [])
    for part in parts:
        whole.text_offset += part.text_offset
        whole.token_logprobs += part.token_logprobs
        whole.tokens += part.tokens
        whole.top_logprobs += part.top_logprobs
    return whole


def fold_completion(chunks: Iterable[Completion]) -> Completion:
    """The whole answer of which these are the chunks; the last one holds the usage."""
    chunks = list(chunks)
    answers = parts_by_answer(choice for chunk in chunks for choice in chunk.choices)
    last = chunks[-1]
    return Completion(
        id=last.id,
        created=last.created,
        model=last.model,
        choices=[_fold_choice(parts) for parts in answers],
        usage=last.usage,
        system_fingerprint=last.system_fingerprint,
    )


def _fold_choice(parts: list[CompletionChoice]) -> CompletionChoice:
    first, last = parts[0], parts[-1]
    logprobs = [part.logprobs for part in parts if part.logprobs is not None]
    token_ids = [part.token_ids for part in parts if part.token_ids is not UNSET]
    return CompletionChoice(
        index=first.index,
        text="".join([part.text for part in parts]),
        logprobs=join_logprobs(logprobs) if logprobs else None,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        token_ids=[token_id for part in token_ids for token_id in part] if token_ids else UNSET,
        prompt_token_ids=first.prompt_token_ids,
        prompt_logprobs=first.prompt_logprobs,
        explain=last.explain,
    )
