"""Blocks: an answer as a sequence of reasoning, text and tool calls, for protocols that send one after the other.

The sequence is that of the text: what stands behind a call is a block of its own. It depends on the text alone, and not
on the pieces in which the text comes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from fathom.entrypoints.server.assembly.common import Envelope, UsageCounter
from fathom.entrypoints.server.errors import ApiError
from fathom.entrypoints.server.parsed import ContentDelta, DeltaPart, ReasoningDelta, ToolCallDelta
from fathom.entrypoints.server.parsing import OutputParser
from fathom.entrypoints.server.text_reader import SPACE
from fathom.outputs import CompletionOutput, RequestOutput


@dataclass
class Block:
    """One part of an answer.

    index: its place in the answer. name: of the function that a call calls. followed: another block comes after it.
    """

    index: int
    kind: Literal["reasoning", "text", "call"]
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    followed: bool = False

    @property
    def text(self) -> str:
        """The reasoning, the text, or the arguments, so far."""
        return "".join(self.pieces)


@dataclass(frozen=True)
class BlockStep:
    """A block begins, grows by some text, or ends."""

    kind: Literal["begin", "grow", "end"]
    block: Block
    text: str = ""


class BlockReader:
    """Reads one answer, piece by piece.

    Args:
        parser: tells reasoning, content and calls apart.
        prefix: the beginning of the answer that the prompt holds.
    """

    def __init__(self, parser: OutputParser, prefix: str) -> None:
        self._parse = parser.stream()
        self._unread = prefix
        self.blocks: list[Block] = []

    def feed(self, text: str, finished: bool) -> Iterator[BlockStep]:
        """What some more text does to the blocks; with `finished`, the last one ends too."""
        delta = self._parse.feed(self._unread + text, finished)
        self._unread = ""
        for part in delta.parts:
            yield from self._grow(part)
        if finished and self.blocks:
            yield BlockStep("end", self.blocks[-1])

    def _grow(self, part: DeltaPart) -> Iterator[BlockStep]:
        last = self.blocks[-1] if self.blocks else None
        text = part.arguments if isinstance(part, ToolCallDelta) else part.text
        if _begins_block(part, last):
            if last is not None:
                last.followed = True
                yield BlockStep("end", last)
                text = text.lstrip(SPACE) if isinstance(part, ContentDelta) else text
            last = Block(len(self.blocks), _kind_of(part), (part.name or "") if isinstance(part, ToolCallDelta) else "")
            self.blocks.append(last)
            yield BlockStep("begin", last)
        assert last is not None
        if text:
            last.pieces.append(text)
            yield BlockStep("grow", last, text)


class BlockAssembler(ABC):
    """Turns the outputs of a request into events about blocks; what these look like is the protocol's.

    Args:
        envelope: who the answer is from.
        reader: reads the model's text.
        prompt_length: in tokens.
    """

    def __init__(self, envelope: Envelope, reader: BlockReader, prompt_length: int) -> None:
        self._envelope = envelope
        self._reader = reader
        self._usage = UsageCounter([prompt_length])
        self._last: CompletionOutput | None = None  # the output that ended the answer

    def step(self, prompt: int, output: RequestOutput) -> list[Any]:
        """The events of one output (of deltas) of the prompt, of which there is one."""
        self._usage.add(prompt, output)
        (answer,) = output.outputs
        finished = answer.finish_reason is not None
        if finished:
            self._last = answer
        return [event for step in self._reader.feed(answer.text, finished) for event in self._events(step)]

    @abstractmethod
    def begin(self) -> list[Any]:
        """The answer, still empty."""

    @abstractmethod
    def end(self) -> list[Any]:
        """The events after the last output."""

    @abstractmethod
    def failed(self, error: ApiError) -> bytes:
        """The event of an answer that failed, as it is sent."""

    @abstractmethod
    def _events(self, step: BlockStep) -> Iterator[Any]:
        """What is told of a step."""


def _kind_of(part: DeltaPart) -> Literal["reasoning", "text", "call"]:
    if isinstance(part, ReasoningDelta):
        return "reasoning"
    return "text" if isinstance(part, ContentDelta) else "call"


def _begins_block(part: DeltaPart, last: Block | None) -> bool:
    if last is None or _kind_of(part) != last.kind:
        return True
    return isinstance(part, ToolCallDelta) and part.name is not None
