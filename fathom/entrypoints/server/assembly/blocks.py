"""Blocks: an answer as a sequence of reasoning, text and tool calls, for protocols that send one after the other.

The sequence is that of the text: what stands behind a call is a block of its own. It depends on the text alone, and not
on the pieces in which the text comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from fathom.entrypoints.server.parsed import ContentDelta, DeltaPart, ReasoningDelta, ToolCallDelta
from fathom.entrypoints.server.parsing import OutputParser
from fathom.entrypoints.server.text_reader import SPACE


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


def _kind_of(part: DeltaPart) -> Literal["reasoning", "text", "call"]:
    if isinstance(part, ReasoningDelta):
        return "reasoning"
    return "text" if isinstance(part, ContentDelta) else "call"


def _begins_block(part: DeltaPart, last: Block | None) -> bool:
    if last is None or _kind_of(part) != last.kind:
        return True
    return isinstance(part, ToolCallDelta) and part.name is not None
