"""What a model's output says: reasoning, content and tool calls, and how they grow."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fathom.entrypoints.server.text_reader import SPACE


@dataclass(frozen=True)
class ToolCall:
    """One call. `arguments` is JSON text, as far as the model has written it."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ToolCallDelta:
    """Growth of call number `index`; `name` is set where the call begins, and None after that."""

    index: int
    name: str | None
    arguments: str


@dataclass(frozen=True)
class Delta:
    """What some more text has added."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.tool_calls)


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


@dataclass
class _OpenCall:
    index: int
    name: str | None
    arguments: list[str] = field(default_factory=list)


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
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._open: list[_OpenCall] = []

    def add_reasoning(self, text: str) -> None:
        self._reasoning.append(text)

    def add_content(self, text: str) -> None:
        if self._trims:
            text = self._space + text
            kept = text.rstrip(SPACE)
            self._space = text[len(kept) :]
            text = kept if self._has_content or not self._calls else kept.lstrip(SPACE)
        if text:
            self._has_content = True
            self._content.append(text)

    def open_call(self, name: str) -> None:
        """Begin a call, to which add_arguments adds."""
        self._calls += 1
        self._open.append(_OpenCall(self._calls - 1, name))

    def add_arguments(self, text: str) -> None:
        if not self._open:
            self._open.append(_OpenCall(self._calls - 1, None))
        self._open[-1].arguments.append(text)

    def finish(self) -> None:
        """No more will come: space at the end is content, unless it stands behind a call."""
        if not self._calls:
            self._content.append(self._space)
        self._space = ""

    def drain(self) -> Delta:
        """What came since the last drain."""
        calls = [ToolCallDelta(call.index, call.name, "".join(call.arguments)) for call in self._open]
        if self._one_call:
            calls = [call for call in calls if call.index == 0]
        delta = Delta("".join(self._reasoning), "".join(self._content), tuple(calls))
        self._reasoning, self._content, self._open = [], [], []
        return delta
