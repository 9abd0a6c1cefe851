"""What a model's output says: reasoning, content and tool calls, and how they grow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby

from fathom.entrypoints.server.text_reader import SPACE


@dataclass(frozen=True)
class ToolCall:
    """One call. `arguments` is JSON text, as far as the model has written it."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ReasoningDelta:
    """Growth of the reasoning."""

    text: str


@dataclass(frozen=True)
class ContentDelta:
    """Growth of the content."""

    text: str


@dataclass(frozen=True)
class ToolCallDelta:
    """Growth of call number `index`; `name` is set where the call begins, and None after that."""

    index: int
    name: str | None
    arguments: str


DeltaPart = ReasoningDelta | ContentDelta | ToolCallDelta


@dataclass(frozen=True)
class Delta:
    """What some more text has added, in the order of the text."""

    parts: tuple[DeltaPart, ...] = ()

    @property
    def reasoning(self) -> str:
        """The reasoning among the parts."""
        return "".join([part.text for part in self.parts if isinstance(part, ReasoningDelta)])

    @property
    def content(self) -> str:
        """The content among the parts."""
        return "".join([part.text for part in self.parts if isinstance(part, ContentDelta)])

    @property
    def tool_calls(self) -> tuple[ToolCallDelta, ...]:
        """The calls among the parts."""
        return tuple(part for part in self.parts if isinstance(part, ToolCallDelta))


@dataclass(frozen=True)
class Parsed:
    """A model's output so far. Over a text that grows, each string and the list of calls only grow."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    def plus(self, delta: Delta) -> Parsed:
        """This and what has been added."""
        calls = list(self.tool_calls)
        for added in delta.tool_calls:
            if added.name is None:
                call = calls[added.index]
                calls[added.index] = replace(call, arguments=call.arguments + added.arguments)
            else:
                calls.append(ToolCall(added.name, added.arguments))
        return Parsed(self.reasoning + delta.reasoning, self.content + delta.content, tuple(calls))


_Piece = tuple[type, int, str | None, str]
"""Kind, number and name of a call, text."""


class Collector:
    """Takes what the parsers find and hands it out as deltas.

    White space that stands between content and markup belongs to the markup: it is held until more content
    follows, and dropped where calls or reasoning are on its other side.

    Args:
        trims: whether there may be calls, and so white space to hold.
        one_call: keep the first call, and drop the others.
    """

    def __init__(self, *, trims: bool, one_call: bool):
        self._trims = trims
        self._one_call = one_call
        self._space = ""
        self._has_content = False
        self._calls = 0
        self._pieces: list[_Piece] = []

    def add_reasoning(self, text: str) -> None:
        if text:
            self._pieces.append((ReasoningDelta, 0, None, text))

    def add_content(self, text: str) -> None:
        if self._trims:
            text = self._space + text
            kept = text.rstrip(SPACE)
            self._space = text[len(kept) :]
            text = kept if self._has_content or not self._calls else kept.lstrip(SPACE)
        if text:
            self._has_content = True
            self._pieces.append((ContentDelta, 0, None, text))

    def open_call(self, name: str) -> None:
        """Begin a call, to which add_arguments adds."""
        self._calls += 1
        self._add_to_call(name, "")

    def add_arguments(self, text: str) -> None:
        self._add_to_call(None, text)

    def _add_to_call(self, name: str | None, text: str) -> None:
        index = self._calls - 1
        if index == 0 or not self._one_call:
            self._pieces.append((ToolCallDelta, index, name, text))

    def finish(self) -> None:
        """No more will come: space at the end is content, unless it stands behind a call."""
        if self._space and not self._calls:
            self._pieces.append((ContentDelta, 0, None, self._space))
        self._space = ""

    def drain(self) -> Delta:
        """What came since the last drain."""
        parts: list[DeltaPart] = []
        for (kind, index), run in groupby(self._pieces, key=lambda piece: piece[:2]):
            pieces = list(run)
            text = "".join([piece[3] for piece in pieces])
            parts.append(ToolCallDelta(index, pieces[0][2], text) if kind is ToolCallDelta else kind(text))
        self._pieces = []
        return Delta(tuple(parts))
