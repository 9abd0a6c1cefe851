"""OutputParser: a model's text -> its reasoning, content and tool calls.

The parse is a function of the text alone, however it was cut into pieces; over a text that grows the result
only grows. `parse` states that function; `stream` computes it piece by piece, in time that does not depend on
what came before. Both run the same generators (see text_reader), so a streamed answer and one in full agree.

Without tools calls are not looked for, and with neither tools nor reasoning the text is the content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from fathom.entrypoints.server.parsed import Collector, Delta, Parsed
from fathom.entrypoints.server.reasoning import REASONING_TAGS, reasoning_tags_of
from fathom.entrypoints.server.reasoning.tags import ReasoningTags
from fathom.entrypoints.server.text_reader import Markers, TextReader, Wait
from fathom.entrypoints.server.tools import TOOL_DIALECTS, tool_dialect_of
from fathom.entrypoints.server.tools.dialect import Dialect, Tools, declared
from fathom.errors import ConfigError

_HARMONY = frozenset({"openai", "openai_gptoss", "gptoss", "harmony"})
_NOTHING = Markers(())


class OutputParser:
    """How to read one request's outputs. Immutable: a stream has the state.

    tags: how reasoning is marked; inside_reasoning: the prompt ends within it.
    markup: strings that the parse looks for. Those that are special tokens of the tokenizer must reach the text:
        if there are any, detokenise with skip_special_tokens=False.

    Args:
        dialect: how calls are written; None leaves all text content.
        tags: how reasoning is marked; None if it is not.
        tools: the declared tools.
        inside_reasoning: the prompt ends within reasoning.
        parallel: several calls, not only the first.
    """

    def __init__(
        self,
        dialect: Dialect | None = None,
        tags: ReasoningTags | None = None,
        *,
        tools: Tools | None = None,
        inside_reasoning: bool = False,
        parallel: bool = True,
    ):
        self._dialect = dialect if tools else None
        self.tags = tags
        self._tools = tools or {}
        self.inside_reasoning = inside_reasoning
        self._parallel = parallel
        self.markup = frozenset[str]().union(
            self._dialect.markup if self._dialect else (), self.tags.markup if self.tags else ()
        )

    def parse(self, text: str, finished: bool) -> Parsed:
        """What a text says.

        Args:
            text: a whole output, or its beginning.
            finished: nothing comes after it, so that the beginning of a marker at its end is content.
        """
        return Parsed().plus(self.stream().feed(text, finished))

    def stream(self) -> ParseStream:
        """A parse of text that arrives in pieces."""
        collector = Collector(trims=self._dialect is not None, one_call=not self._parallel)
        reader = TextReader()
        return ParseStream(reader, collector, self._read(reader, collector))

    def _read(self, reader: TextReader, out: Collector) -> Wait[None]:
        if self.tags:
            yield from self.tags.read(reader, out, inside=self.inside_reasoning)
        if self._dialect:
            yield from self._dialect.read(reader, out, self._tools)
        else:
            yield from reader.copy_until(_NOTHING, out.add_content)


class ParseStream:
    """One output on its way through a parser."""

    def __init__(self, reader: TextReader, collector: Collector, steps: Wait[None]):
        self._reader = reader
        self._collector = collector
        self._steps = steps

    def feed(self, piece: str, finished: bool = False) -> Delta:
        """Take more text, and with `finished` the end; what that adds to the result."""
        self._reader.feed(piece, finished)
        next(self._steps, None)
        if finished:
            self._collector.finish()
        return self._collector.drain()


def closed_reasoning(reasoning_parser: str | None, chat_template: str | None, prompt: str) -> str:
    """What ends the reasoning block that a prompt has opened; "" if it has not."""
    _, tags = _choose(None, reasoning_parser, chat_template or "")
    return "" if tags is None else tags.closing(prompt)


def make_parser(
    tool_parser: str | None,
    reasoning_parser: str | None,
    chat_template: str | None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    *,
    parallel_tool_calls: bool = True,
    prompt: str = "",
) -> OutputParser:
    """The parser of a request's outputs.

    Args:
        tool_parser, reasoning_parser: vLLM's names; None chooses by the template, "none" means no such parser.
        chat_template: the template's text.
        tools: those that the model may call; without them calls are not looked for.
        parallel_tool_calls: False keeps the first call only.
        prompt: the rendered prompt, or its end, which shows whether it has opened a reasoning block.

    Raises:
        ConfigError: an unknown parser; the message lists the names.
    """
    dialect, tags = _choose(tool_parser, reasoning_parser, chat_template or "")
    return OutputParser(
        dialect,
        tags,
        tools=declared(tools or ()),
        inside_reasoning=tags is not None and tags.opened_by(prompt),
        parallel=parallel_tool_calls,
    )


@lru_cache(maxsize=64)
def _choose(
    tool_parser: str | None, reasoning_parser: str | None, chat_template: str
) -> tuple[Dialect | None, ReasoningTags | None]:
    return (
        _by_name("tool_parser", tool_parser or tool_dialect_of(chat_template) or "none", TOOL_DIALECTS),
        _by_name("reasoning_parser", reasoning_parser or reasoning_tags_of(chat_template) or "none", REASONING_TAGS),
    )


def _by_name(parameter: str, name: str, table: Mapping[str, Any]) -> Any:
    if name == "none":
        return None
    if name in _HARMONY:
        raise ConfigError(
            f"{name} reads gpt-oss's harmony format, which Fathom does not speak.",
            parameter=parameter,
            value=name,
            hint='Pass "none", and read the text yourself.',
        )
    if name not in table:
        raise ConfigError(
            f"There is no {parameter.replace('_', ' ')} {name!r}.",
            parameter=parameter,
            value=name,
            hint=f"Choose one of: none, {', '.join(sorted(table))}; or leave it out to choose by the chat template.",
        )
    return table[name]
