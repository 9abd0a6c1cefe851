"""Answers of /v1/responses: outputs -> events -> one answer, which the last event holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from fathom.entrypoints.server.assembly.blocks import Block, BlockAssembler, BlockReader, BlockStep
from fathom.entrypoints.server.assembly.common import Envelope, call_id
from fathom.entrypoints.server.assembly.reasoning_tokens import ReasoningTokens
from fathom.entrypoints.server.errors import ApiError
from fathom.entrypoints.server.protocol.response_events import ItemEvent, PartEvent, ResponseEvent, TextEvent
from fathom.entrypoints.server.protocol.responses import (
    IncompleteDetails,
    InputTokensDetails,
    OutputFunctionCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    OutputTokensDetails,
    ReasoningText,
    ResponseAnswer,
    ResponseError,
    ResponseUsage,
)
from fathom.entrypoints.server.typed_events import encoded
from fathom.outputs import RequestOutput

_ID_PREFIXES = {"reasoning": "rs_", "text": "msg_", "call": "fc_"}


class ResponsesAssembler(BlockAssembler):
    """See BlockAssembler.

    Args:
        answer: the answer as it begins, with the request's settings.
        reasoning: counts the tokens of the reasoning; None if it is not told apart.
    """

    def __init__(
        self,
        envelope: Envelope,
        answer: ResponseAnswer,
        reader: BlockReader,
        prompt_length: int,
        reasoning: ReasoningTokens | None,
    ) -> None:
        super().__init__(envelope, reader, prompt_length)
        self._answer = answer
        self._reasoning = reasoning
        self._num_events = 0

    def begin(self) -> list[Any]:
        """The answer, still empty."""
        return [self._response_event("created", self._answer), self._response_event("in_progress", self._answer)]

    def step(self, prompt: int, output: RequestOutput) -> list[Any]:
        """The events of one output; reasoning is counted by its tokens."""
        if self._reasoning is not None:
            for answer in output.outputs:
                self._reasoning.add(answer.token_ids, answer.finish_reason is not None)
        return super().step(prompt, output)

    def end(self) -> list[Any]:
        """The whole answer."""
        assert self._last is not None
        whole = msgspec.structs.replace(self._answer, status="completed", output=self._items(), usage=self.usage())
        if self._last.finish_reason != "stop":
            reason = "max_output_tokens" if self._last.finish_reason == "length" else str(self._last.stop_reason)
            whole = msgspec.structs.replace(whole, status="incomplete", incomplete_details=IncompleteDetails(reason))
        return [self._response_event(whole.status, whole)]

    def failed(self, error: ApiError) -> bytes:
        """The event of an answer that failed, with what there was of it."""
        why = ResponseError(error.body.error.code or "server_error", error.body.error.message)
        so_far = msgspec.structs.replace(self._answer, status="failed", output=self._items(), error=why)
        return encoded([self._response_event("failed", so_far)])

    def usage(self) -> ResponseUsage:
        """The usage so far."""
        counted = self._usage.usage()
        return ResponseUsage(
            counted.prompt_tokens,
            InputTokensDetails(counted.prompt_tokens_details.cached_tokens),
            counted.completion_tokens,
            OutputTokensDetails(0 if self._reasoning is None else self._reasoning.count),
            counted.total_tokens,
        )

    # ---------------------------------------------------------------- events

    def _events(self, step: BlockStep) -> Iterator[Any]:
        block = step.block
        if step.kind == "begin":
            yield self._item_event("added", block, self._item(block, "in_progress", ""))
            if block.kind != "call":
                yield self._part_event("added", block, "")
        elif step.kind == "grow":
            yield self._text_event(block, "delta", step.text)
        else:
            yield self._text_event(block, "done", block.text)
            if block.kind != "call":
                yield self._part_event("done", block, block.text)
            yield self._item_event("done", block, self._item(block, self._status_of(block), block.text))

    def _number(self) -> int:
        self._num_events += 1
        return self._num_events - 1

    def _response_event(self, kind: str, answer: ResponseAnswer) -> ResponseEvent:
        return ResponseEvent(type=f"response.{kind}", sequence_number=self._number(), response=answer)

    def _item_event(self, kind: str, block: Block, item: OutputItem) -> ItemEvent:
        return ItemEvent(
            type=f"response.output_item.{kind}",
            sequence_number=self._number(),
            output_index=block.index,
            item=item,
        )

    def _part_event(self, kind: str, block: Block, text: str) -> PartEvent:
        return PartEvent(
            type=f"response.content_part.{kind}",
            sequence_number=self._number(),
            item_id=self._id_of(block),
            output_index=block.index,
            part=_part(block, text),
        )

    def _text_event(self, block: Block, kind: str, text: str) -> TextEvent:
        whole = kind == "done"
        found = TextEvent(
            type=f"response.{_TEXT_EVENTS[block.kind]}.{kind}",
            sequence_number=self._number(),
            item_id=self._id_of(block),
            output_index=block.index,
        )
        if not whole:
            found.delta = text
        elif block.kind == "call":
            found.arguments, found.name = text, block.name
        else:
            found.text = text
        if block.kind != "call":
            found.content_index = 0
        if block.kind == "text":
            found.logprobs = []
        return found

    # ---------------------------------------------------------------- items

    def _items(self) -> list[OutputItem]:
        return [self._item(block, self._status_of(block), block.text) for block in self._reader.blocks]

    def _status_of(self, block: Block) -> str:
        """The last item of an answer that was cut off is incomplete."""
        ended = self._last is not None and self._last.finish_reason == "stop"
        return "completed" if ended or block.followed else "incomplete"

    def _id_of(self, block: Block) -> str:
        return f"{_ID_PREFIXES[block.kind]}{self._envelope.id.removeprefix('resp_')}_{block.index}"

    def _item(self, block: Block, status: str, text: str) -> OutputItem:
        name = self._id_of(block)
        if block.kind == "call":
            call = call_id(self._envelope, 0, block.index)
            return OutputFunctionCall(id=name, status=status, call_id=call, name=block.name, arguments=text)
        begun = status != "in_progress"
        if block.kind == "reasoning":
            return OutputReasoning(id=name, status=status, content=[ReasoningText(text=text)] if begun else [])
        return OutputMessage(id=name, status=status, content=[OutputText(text=text)] if begun else [])


_TEXT_EVENTS = {"reasoning": "reasoning_text", "text": "output_text", "call": "function_call_arguments"}


def _part(block: Block, text: str) -> OutputText | ReasoningText:
    return ReasoningText(text=text) if block.kind == "reasoning" else OutputText(text=text)


def fold_responses(events: Iterable[Any]) -> ResponseAnswer:
    """The whole answer of which these are the events."""
    *_, last = events
    answer: ResponseAnswer = last.response
    return answer
