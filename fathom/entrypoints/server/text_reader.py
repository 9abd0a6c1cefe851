"""TextReader: text that arrives in pieces, read as if it were all there.

The parsers of model output are generators. Where they need text that has not come yet they `yield`, and go on
when there is more; so each reads like a parser of a finished text. What an operation here consumes and passes
on depends on the text alone and never on how it was cut: an operation takes all it can, and holds back only
what might still turn into one of the markers that it looks for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

T = TypeVar("T")
Wait = Generator[None, None, T]
"""A step that yields whenever it needs more text, and returns a T."""

Emit = Callable[[str], None]

SPACE = " \t\r\n"


class Markers:
    """Strings to look for, none of them a prefix of another.

    words: the strings; pattern: finds any of them.
    """

    def __init__(self, words: Iterable[str]):
        self.words = tuple(dict.fromkeys(words))
        self.pattern = re.compile("|".join(map(re.escape, self.words)) or r"(?!)")
        self._beginnings = {word[:end] for word in self.words for end in range(1, len(word))}
        self._longest = max(map(len, self._beginnings), default=0)

    def held(self, text: str, start: int) -> int:
        """Length of the longest end of text[start:] that may be the beginning of a marker."""
        for length in range(min(self._longest, len(text) - start), 0, -1):
            if text[-length:] in self._beginnings:
                return length
        return 0


class TextReader:
    """A cursor in a text of which more may come. Text before the cursor is forgotten, unless it is marked."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._mark: int | None = None
        self._finished = False

    def feed(self, piece: str, finished: bool) -> None:
        """More text; `finished` says that there will be no more after it."""
        keep = self._at if self._mark is None else self._mark
        self._text = self._text[keep:] + piece
        self._at -= keep
        if self._mark is not None:
            self._mark = 0
        self._finished = finished

    def mark(self) -> None:
        """Remember the cursor for rewind. There is one mark at most: past a call that has begun nothing goes back."""
        assert self._mark is None
        self._mark = self._at

    def rewind(self) -> None:
        """Go back to the mark, and forget it."""
        assert self._mark is not None
        self._at, self._mark = self._mark, None

    def release(self) -> None:
        """Forget the mark."""
        self._mark = None

    def some(self) -> Wait[str]:
        """All the text that is there, at least a character; "" at the end. The cursor stays."""
        while self._at == len(self._text):
            if self._finished:
                return ""
            yield
        return self._text[self._at :]

    def peek(self) -> Wait[str]:
        """The next character, "" at the end. The cursor stays."""
        while self._at == len(self._text):
            if self._finished:
                return ""
            yield
        return self._text[self._at]

    def advance(self, count: int = 1) -> None:
        """Move over text that some() or peek() has shown."""
        self._at += count

    def accept(self, word: str) -> Wait[bool]:
        """Move over the word if it is what follows."""
        return bool((yield from self.accept_any((word,))))

    def accept_after_space(self, word: str) -> Wait[bool]:
        """Move over white space and the word, if that is what follows; else stay."""
        self.mark()
        yield from self.skip_space()
        found = yield from self.accept(word)
        if found:
            self.release()
        else:
            self.rewind()
        return found

    def accept_any(self, words: Iterable[str]) -> Wait[str]:
        """Move over the longest of the words that follows; "" if none does."""
        words = sorted(words, key=len, reverse=True)
        while True:
            have = self._text[self._at : self._at + len(words[0])] if words else ""
            if not self._finished and any(len(word) > len(have) and word.startswith(have) for word in words):
                yield
                continue
            found = next((word for word in words if have.startswith(word)), "")
            self._at += len(found)
            return found

    def copy_run(self, pattern: re.Pattern[str], emit: Emit) -> Wait[None]:
        """Pass on the characters that the pattern (of a run of one or more of a set) takes."""
        while (yield from self.peek()) and (run := pattern.match(self._text, self._at)):
            emit(run.group())
            self._at = run.end()

    def skip_space(self) -> Wait[None]:
        """Move over white space."""
        yield from self.copy_run(_SPACES, drop)

    def copy_until(self, markers: Markers, emit: Emit) -> Wait[str]:
        """Pass on the text before the first marker; the marker, at which the cursor then is, or "" at the end."""
        while True:
            text, at = self._text, self._at
            found = markers.pattern.search(text, at)
            end = found.start() if found else len(text)
            if found is None and not self._finished:
                end -= markers.held(text, at)
            if end > at:
                emit(text[at:end])
                self._at = end
            if found or self._finished:
                return found.group() if found else ""
            yield


def drop(text: str) -> None:
    """Receives text that is not wanted."""


_SPACES = re.compile(f"[{SPACE}]+")
