"""Answers of Anthropic's /v1/messages: outputs -> events -> one answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from fathom.entrypoints.server.assembly.blocks import Block, BlockAssembler, BlockReader, BlockStep
from fathom.entrypoints.server.assembly.common import Envelope, call_id
from fathom.entrypoints.server.errors import ApiError
from fathom.entrypoints.server.http import event
from fathom.entrypoints.server.protocol.messages import (
    AnswerBlock,
    AnswerText,
    AnswerThinking,
    AnswerToolUse,
    BlockDelta,
    BlockStart,
    BlockStop,
    InputGrowth,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    StopInfo,
    TextGrowth,
    ThinkingGrowth,
    ThinkingTokens,
)
from fathom.outputs import CompletionOutput


class MessagesAssembler(BlockAssembler):
    """See BlockAssembler.

    Args:
        max_tokens: what was asked for; an answer that ends below it has filled the context.
        num_tokens: counts the tokens of a text.
    """

    def __init__(
        self,
        envelope: Envelope,
        max_tokens: int,
        reader: BlockReader,
        prompt_length: int,
        num_tokens: Callable[[str], int],
    ) -> None:
        super().__init__(envelope, reader, prompt_length)
        self._max_tokens = max_tokens
        self._num_tokens = num_tokens

    def begin(self) -> list[Any]:
        """The answer, still empty."""
        envelope = self._envelope
        return [MessageStart(Message(id=envelope.id, model=envelope.model, content=[], usage=self._counted())), Ping()]

    def end(self) -> list[Any]:
        """Why the answer ended."""
        assert self._last is not None
        reason = self._stop_reason(self._last)
        sequence = str(self._last.stop_reason) if reason == "stop_sequence" else None
        return [MessageDelta(StopInfo(reason, sequence), self._counted()), MessageStop()]

    def failed(self, error: ApiError) -> bytes:
        """The event of an answer that failed."""
        return event(error.encode_for_anthropic(), "error")

    def fold(self, events: Iterable[Any]) -> Message:
        """The whole answer of which these are the events after the first."""
        return fold_message([*self.begin(), *events])

    def _events(self, step: BlockStep) -> Iterator[Any]:
        block = step.block
        if step.kind == "begin":
            yield BlockStart(block.index, self._empty(block))
        elif step.kind == "grow":
            yield BlockDelta(block.index, _GROWTH[block.kind](step.text))
        else:
            yield BlockStop(block.index)

    def _empty(self, block: Block) -> AnswerBlock:
        if block.kind == "call":
            return AnswerToolUse(id=call_id(self._envelope, 0, block.index), name=block.name, input={})
        return AnswerThinking(thinking="") if block.kind == "reasoning" else AnswerText(text="")

    def _stop_reason(self, answer: CompletionOutput) -> str:
        if answer.finish_reason == "length":
            cut = self._usage.usage().completion_tokens < self._max_tokens
            return "model_context_window_exceeded" if cut else "max_tokens"
        if answer.finish_reason == "abort":
            return "pause_turn"
        if isinstance(answer.stop_reason, str):
            return "stop_sequence"
        return "tool_use" if any(block.kind == "call" for block in self._reader.blocks) else "end_turn"

    def _counted(self) -> MessageUsage:
        """The usage so far. Thinking is counted by its text, so that it does not depend on how the outputs came."""
        counted = self._usage.usage()
        cached = counted.prompt_tokens_details.cached_tokens
        thinking = sum(self._num_tokens(block.text) for block in self._reader.blocks if block.kind == "reasoning")
        return MessageUsage(
            input_tokens=counted.prompt_tokens - cached,
            cache_read_input_tokens=cached,
            output_tokens=counted.completion_tokens,
            output_tokens_details=ThinkingTokens(min(thinking, counted.completion_tokens)),
        )


_GROWTH: dict[str, Callable[[str], TextGrowth | InputGrowth | ThinkingGrowth]] = {
    "reasoning": ThinkingGrowth,
    "text": TextGrowth,
    "call": InputGrowth,
}


def fold_message(events: Iterable[Any]) -> Message:
    """The whole answer of which these are the events."""
    start, *rest = events
    message: Message = start.message
    pieces: list[str] = []  # of the block that is open
    for item in rest:
        if isinstance(item, BlockStart):
            pieces = []
            message.content.append(item.content_block)
        elif isinstance(item, BlockDelta):
            pieces.append(_text_of(item.delta))
        elif isinstance(item, BlockStop):
            _fill(message.content[item.index], "".join(pieces))
        elif isinstance(item, MessageDelta):
            message.stop_reason, message.stop_sequence = item.delta.stop_reason, item.delta.stop_sequence
            message.usage = item.usage
    return message


def _text_of(growth: TextGrowth | InputGrowth | ThinkingGrowth) -> str:
    if isinstance(growth, TextGrowth):
        return growth.text
    return growth.thinking if isinstance(growth, ThinkingGrowth) else growth.partial_json


def _fill(block: AnswerBlock, text: str) -> None:
    if isinstance(block, AnswerText):
        block.text = text
    elif isinstance(block, AnswerThinking):
        block.thinking = text
    else:
        block.input = _object(text)


def _object(text: str) -> dict[str, Any]:
    """The input of a call, from its text."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return {"INVALID_JSON": text}
