"""ReasoningTags: reads the reasoning at the beginning of an output."""

from __future__ import annotations

from collections.abc import Iterable

from fathom.entrypoints.server.parsed import Collector
from fathom.entrypoints.server.text_reader import SPACE, Markers, TextReader, Wait


class ReasoningTags:
    """The tags around reasoning, each in all its spellings."""

    def __init__(self, starts: Iterable[str], ends: Iterable[str]):
        self.starts = tuple(starts)
        self.ends = Markers(ends)
        self.markup = frozenset((*self.starts, *self.ends.words))

    def opened_by(self, prompt: str) -> bool:
        """Whether a prompt ends with a start tag. Tags elsewhere in it may be a user's words."""
        return prompt.rstrip(SPACE).endswith(self.starts)

    def closing(self, prompt: str) -> str:
        """What ends the block that a prompt has opened; "" if it has not."""
        return f"\n{self.ends.words[0]}\n\n" if self.opened_by(prompt) else ""

    def read(self, reader: TextReader, out: Collector, *, inside: bool) -> Wait[None]:
        """Read the reasoning and the space behind it; nothing if there is none.

        Args:
            inside: the prompt has opened the block. A start tag, should the model write one too, is skipped.
        """
        reader.mark()
        yield from reader.skip_space()
        started = yield from reader.accept_any(self.starts)
        if not started and not inside:
            reader.rewind()
            return
        reader.release()
        yield from reader.skip_space()
        space = ""

        def emit(text: str) -> None:
            nonlocal space
            text = space + text
            kept = text.rstrip(SPACE)
            space = text[len(kept) :]
            out.add_reasoning(kept)

        end = yield from reader.copy_until(self.ends, emit)
        yield from reader.accept(end)
        yield from reader.skip_space()
