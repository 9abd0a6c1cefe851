"""How many tokens of an answer are reasoning, counted on its token ids.

Each id is turned into text by itself, so it does not matter how many came at once. A token is reasoning if it begins
between the tags; the tags' own tokens are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from fathom.entrypoints.server.parsing import OutputParser
from fathom.entrypoints.server.reasoning.tags import ReasoningTags
from fathom.entrypoints.server.text_reader import SPACE
from fathom.frontend.tokenizer.text_stream import TextStream
from fathom.frontend.tokenizer.tokenizer import Tokenizer

_Place = Enum("_Place", ["BEFORE", "INSIDE", "BEHIND"])


def pieces_of(tokenizer: Tokenizer) -> Callable[[], TextStream]:
    """Opens streams from ids to text that show every token."""
    return lambda: tokenizer.text_stream(skip_special_tokens=False)


def reasoning_tokens(
    parser: OutputParser, pieces: Callable[[], TextStream], prefix: str = ""
) -> ReasoningTokens | None:
    """Counts an answer that a parser reads; None if it does not look for reasoning."""
    if parser.tags is None:
        return None
    return ReasoningTokens(parser.tags, parser.inside_reasoning, pieces(), prefix)


class ReasoningTokens:
    """Counts one answer.

    Args:
        tags: how reasoning is marked.
        inside: the prompt has opened it.
        pieces: turns the answer's ids into text, special tokens included.
        prefix: the beginning of the answer that the prompt holds; its tokens are not the answer's.
    """

    def __init__(self, tags: ReasoningTags, inside: bool, pieces: TextStream, prefix: str = "") -> None:
        self.count = 0
        self._tags = tags
        self._opened = inside
        self._pieces = pieces
        self._place = _Place.BEFORE
        self._text = prefix  # what has not been settled, from position _at on
        self._at = 0
        self._begins: list[int] = []  # where the tokens begin that have not been settled

    def add(self, token_ids: Sequence[int], finished: bool) -> None:
        """Take in the next ids, and with `finished` the end."""
        for token_id in token_ids:
            if self._place is _Place.BEHIND:
                return
            self._begins.append(self._at + len(self._text))
            self._text += self._pieces.push([token_id])
            self._settle(finished=False)
        if finished:
            self._settle(finished=True)

    def _settle(self, finished: bool) -> None:
        if self._place is _Place.BEFORE:
            self._look_for_start(finished)
        if self._place is _Place.INSIDE:
            self._look_for_end(finished)

    def _look_for_start(self, finished: bool) -> None:
        rest = self._text.lstrip(SPACE)
        if not finished and any(tag != rest and tag.startswith(rest) for tag in self._tags.starts):
            return
        tag = max((tag for tag in self._tags.starts if rest.startswith(tag)), key=len, default="")
        if not tag and not self._opened:
            self._place = _Place.BEHIND
            return
        self._place = _Place.INSIDE
        self._drop(len(self._text) - len(rest) + len(tag) if tag else 0)
        self._begins = [begin for begin in self._begins if begin >= self._at]

    def _look_for_end(self, finished: bool) -> None:
        found = self._tags.ends.pattern.search(self._text)
        length = len(self._text) if finished else len(self._text) - self._tags.ends.held(self._text, 0)
        self._drop(found.start() if found else length)
        unsettled = [begin for begin in self._begins if begin >= self._at and not (finished and not found)]
        self.count += len(self._begins) - len(unsettled)
        self._begins = unsettled
        if found:
            self._place = _Place.BEHIND

    def _drop(self, length: int) -> None:
        self._text = self._text[length:]
        self._at += length
