"""Answers of /v1/chat/completions: outputs -> chunks -> one answer.

What the model writes goes through a parser, which tells reasoning, content and tool calls apart. What it finds does not
depend on the pieces in which the text comes, so a chunk holds what a piece has added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from fathom.entrypoints.server.assembly.common import (
    Envelope,
    Explainer,
    UsageCounter,
    call_id,
    parts_by_answer,
    prompt_logprobs_field,
)
from fathom.entrypoints.server.assembly.logprobs import TokenNames, chat_logprobs
from fathom.entrypoints.server.assembly.reasoning_tokens import ReasoningTokens, reasoning_tokens
from fathom.entrypoints.server.parsing import OutputParser, ParseStream
from fathom.entrypoints.server.protocol.chat import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChunkChoice,
    FunctionCall,
    FunctionCallDelta,
    ToolCall,
    ToolCallDelta,
)
from fathom.entrypoints.server.protocol.common import Usage
from fathom.frontend.tokenizer.text_stream import TextStream
from fathom.outputs import CompletionOutput, RequestOutput


@dataclass(frozen=True)
class ChatOptions:
    """What a request wants to see.

    parser: reads the answer. pieces: opens a stream from ids to text, to count reasoning; None: it is not counted.
    prefix: text that the parser reads before the answer's, as it ended the prompt. echo: content before the answer's
    own. named: tool_choice names a function. names: None without logprobs.
    """

    n: int
    parser: OutputParser
    pieces: Callable[[], TextStream] | None = None
    role: str = "assistant"
    prefix: str = ""
    echo: str = ""
    named: bool = False
    include_reasoning: bool = True
    names: TokenNames | None = None
    top_logprobs: int = 0
    token_ids: bool = False
    prompt_logprobs: bool = False
    explainer: Explainer | None = None


@dataclass
class _Choice:
    parse: ParseStream
    reasoning: ReasoningTokens | None
    unread: str  # what the parser sees before the next text
    begun: bool = False
    call: int | None = None  # index of the last one
    arguments: str = ""  # of the last call


class ChatAssembler:
    """Turns the outputs of a chat request into chunks: a role, what is new, a finish_reason; then the usage."""

    def __init__(self, envelope: Envelope, options: ChatOptions, prompt_length: int) -> None:
        self._envelope = envelope
        self._options = options
        self._usage = UsageCounter([prompt_length])
        self._choices = [_Choice(options.parser.stream(), self._new_count(), options.prefix) for _ in range(options.n)]
        self._begun = False

    def step(self, prompt: int, output: RequestOutput) -> list[ChatChunk]:
        """The chunks of one output (of deltas) of the prompt, of which there is one."""
        self._usage.add(prompt, output)
        for answer in output.outputs:
            if (reasoning := self._choices[answer.index].reasoning) is not None:
                reasoning.add(answer.token_ids, finished=answer.finish_reason is not None)
        chunks = [self._chunk(choice) for answer in output.outputs for choice in self._choice_parts(output, answer)]
        if chunks and not self._begun:
            self._begun = True
            if self._options.token_ids:
                chunks[0].prompt_token_ids = output.prompt_token_ids
            if self._options.prompt_logprobs:
                chunks[0].prompt_logprobs = prompt_logprobs_field(output.prompt_logprobs)
        return chunks

    def end(self) -> list[ChatChunk]:
        """The chunk with the usage, if one is wanted."""
        return [self._chunk(None)] if self._envelope.include_usage else []

    def _chunk(self, choice: ChunkChoice | None) -> ChatChunk:
        envelope = self._envelope
        with_usage = choice is None or envelope.continuous_usage
        return ChatChunk(
            id=envelope.id,
            created=envelope.created,
            model=envelope.model,
            choices=[] if choice is None else [choice],
            usage=self._whole_usage() if with_usage else envelope.no_usage,
            system_fingerprint=envelope.fingerprint,
        )

    def _new_count(self) -> ReasoningTokens | None:
        options = self._options
        return None if options.pieces is None else reasoning_tokens(options.parser, options.pieces, options.prefix)

    def _whole_usage(self) -> Usage:
        counts = [choice.reasoning.count for choice in self._choices if choice.reasoning is not None]
        return self._usage.usage(sum(counts) if counts else None)

    def _choice_parts(self, output: RequestOutput, answer: CompletionOutput) -> Iterator[ChunkChoice]:
        """What is new of one answer, in up to three parts."""
        options, state = self._options, self._choices[answer.index]
        if not state.begun:
            state.begun = True
            yield ChunkChoice(index=answer.index, delta=ChatDelta(role=options.role, content=options.echo))
        finished = answer.finish_reason is not None
        part = ChunkChoice(index=answer.index, delta=self._delta(state, answer, finished))
        if options.names is not None and answer.logprobs is not None and answer.token_ids:
            part.logprobs = chat_logprobs(answer.logprobs, answer.token_ids, options.top_logprobs, options.names)
        if options.token_ids and answer.token_ids:
            part.token_ids = list(answer.token_ids)
        if part.delta != ChatDelta() or part.logprobs is not None or part.token_ids is not UNSET:
            yield part
        if finished:
            last = ChunkChoice(index=answer.index, delta=ChatDelta(), stop_reason=answer.stop_reason)
            last.finish_reason = self._finish_reason(state, answer)
            if options.explainer is not None:
                last.explain = options.explainer.explain(output)
            yield last

    def _delta(self, state: _Choice, answer: CompletionOutput, finished: bool) -> ChatDelta:
        """What is new of an answer's message."""
        options = self._options
        new = state.parse.feed(state.unread + answer.text, finished)
        state.unread = ""
        for call in new.tool_calls:
            if call.index != state.call:
                state.call, state.arguments = call.index, ""
            state.arguments += call.arguments or ""
        calls = [
            ToolCallDelta(
                index=call.index,
                id=None if call.name is None else call_id(self._envelope, answer.index, call.index),
                type=None if call.name is None else "function",
                function=FunctionCallDelta(call.name, call.arguments),
            )
            for call in new.tool_calls
        ]
        return ChatDelta(
            content=new.content or None,
            reasoning=(new.reasoning or None) if options.include_reasoning else None,
            tool_calls=calls or None,
        )

    def _finish_reason(self, state: _Choice, answer: CompletionOutput) -> str | None:
        """tool_calls for an answer with calls, unless the request's own stop cut the last one off.

        A named function's ends with stop, as OpenAI has it.
        """
        if answer.finish_reason != "stop" or state.call is None or self._options.named:
            return answer.finish_reason
        cut = answer.stop_reason is not None and not _is_json(state.arguments)
        return "stop" if cut else "tool_calls"


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True


def fold_chat(chunks: Iterable[ChatChunk]) -> ChatCompletion:
    """The whole answer of which these are the chunks; the last one holds the usage."""
    chunks = list(chunks)
    answers = parts_by_answer(choice for chunk in chunks for choice in chunk.choices)
    first, last = chunks[0], chunks[-1]
    assert last.usage is not None
    assert last.usage is not UNSET
    return ChatCompletion(
        id=last.id,
        created=last.created,
        model=last.model,
        choices=[_fold_choice(parts) for parts in answers],
        usage=last.usage,
        system_fingerprint=last.system_fingerprint,
        prompt_token_ids=first.prompt_token_ids,
        prompt_logprobs=first.prompt_logprobs,
    )


def _fold_choice(parts: list[ChunkChoice]) -> ChatChoice:
    last = parts[-1]
    logprobs = [entry for part in parts if part.logprobs is not None for entry in part.logprobs.content]
    any_logprobs = any(part.logprobs is not None for part in parts)
    token_ids = [token_id for part in parts if part.token_ids is not UNSET for token_id in part.token_ids]
    any_ids = any(part.token_ids is not UNSET for part in parts)
    return ChatChoice(
        index=last.index,
        message=_fold_message([part.delta for part in parts]),
        logprobs=ChatLogprobs(logprobs) if any_logprobs else None,
        finish_reason=last.finish_reason,
        stop_reason=None if last.stop_reason is UNSET else last.stop_reason,
        token_ids=token_ids if any_ids else UNSET,
        explain=last.explain,
    )


def _fold_message(deltas: list[ChatDelta]) -> AnswerMessage:
    content = "".join([delta.content for delta in deltas if delta.content is not None])
    reasoning = "".join([delta.reasoning for delta in deltas if delta.reasoning is not None])
    calls = _fold_calls(call for delta in deltas for call in delta.tool_calls or ())
    return AnswerMessage(
        role=deltas[0].role or "assistant",
        content=content if content or not calls else None,
        tool_calls=calls or None,
        reasoning=reasoning or None,
    )


def _fold_calls(deltas: Iterable[ToolCallDelta]) -> list[ToolCall]:
    calls: list[ToolCall] = []
    for delta in deltas:
        if delta.index == len(calls):
            calls.append(ToolCall(id=delta.id or "", function=FunctionCall(delta.function.name or "", "")))
        calls[delta.index].function.arguments += delta.function.arguments or ""
    return calls
