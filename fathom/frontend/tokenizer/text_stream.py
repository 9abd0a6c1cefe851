"""From token ids to text, a few ids at a time, such that the pieces add up to the decode of all ids.

A tokenizer's decoder is a function of the whole sequence: bytes of one character lie in several tokens, and
the start of the text is treated in its own way. A TextStream gives out text as soon as no later token can
change it, and never earlier, so nothing has to be taken back. Three kinds of decoder cover the models in use:

- byte level (GPT-2, Llama 3, Qwen): ids are bytes, text is their UTF-8; only an incomplete character waits.
- byte fallback (Llama 2, Mistral, Gemma): tokens are text, and runs of <0xNN> tokens are bytes. A run waits
  for its end, since the library turns the whole of an invalid run into one U+FFFD per byte.
- anything else: by decoding a window of ids with the library itself.

The text of an output is what it adds to its prompt: decode(prompt + output) without its first part
decode(prompt). This matters where the decoder strips a space from the start of the text (Llama 2): the first
word of a completion keeps its space. A character broken in two by the end of the prompt is not put together.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tokenizers

from fathom.frontend.tokenizer.byte_alphabet import token_bytes

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_REPLACEMENT = "\ufffd"
MOST_REMEMBERED = 4096
"""Tokens of which a table remembers what they say. Text is made of fewer, most of the time; a server that remembered
all that it ever met would go on growing until it has met the whole vocabulary."""


class TextStream(Protocol):
    """Text of one output."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that has become certain with these further ids."""
        ...

    def finish(self) -> str:
        """The rest of the text, given that no further id will come."""
        ...


class TextDecoder:
    """The way in which one tokenizer's ids become text; opens a TextStream for each output.

    Tables from id to piece are filled as ids are met, begun anew when they are full, and shared by all streams.
    """

    def __init__(self, backend: tokenizers.Tokenizer, special_ids: frozenset[int]):
        self._backend = backend
        self._special_ids = special_ids
        self._steps = _decoder_steps(backend)
        if [step["type"] for step in self._steps] == ["ByteLevel"]:
            self._stream: Callable[[Sequence[int], bool], TextStream] = self._byte_level
            self._tables = self._piece_tables(token_bytes)
        elif _is_byte_fallback(self._steps):
            self._stream = self._byte_fallback
            self._tables = self._piece_tables(_byte_fallback_speller(self._steps))
        else:
            self._stream = self._window

    def stream(self, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool) -> TextStream:
        """A stream of the output that follows a prompt."""
        return self._stream(prompt_token_ids, skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """One id's bytes of UTF-8, which may be part of a character; special tokens have their spelling's."""
        if self._stream == self._window:
            return self._backend.decode([token_id], skip_special_tokens=False).encode()
        piece = self._tables[False][token_id]
        if isinstance(piece, int):
            return bytes([piece])
        return piece.encode() if isinstance(piece, str) else piece or b""

    def _byte_level(self, prompt_token_ids: Sequence[int], skip: bool) -> TextStream:
        return _ByteLevelStream(self._tables[skip])

    def _byte_fallback(self, prompt_token_ids: Sequence[int], skip: bool) -> TextStream:
        last = self._steps[-1]
        char, count = (last["content"], last["start"]) if last["type"] == "Strip" else ("", 0)
        stream = _ByteFallbackStream(self._tables[skip], char, count)
        stream.pass_over(prompt_token_ids)
        return stream

    def _window(self, prompt_token_ids: Sequence[int], skip: bool) -> TextStream:
        return _WindowStream(self._backend, prompt_token_ids, self._skipped_ids(skip))

    def _skipped_ids(self, skip: bool) -> frozenset[int]:
        return self._special_ids if skip else frozenset()

    def _piece_tables(self, spell: Callable[[str], Any]) -> dict[bool, _Pieces]:
        """The table for each value of skip_special_tokens."""
        return {skip: _Pieces(self._backend, self._skipped_ids(skip), spell) for skip in (False, True)}


class _Pieces(dict[int, Any]):
    """id -> its piece of text, worked out when first asked for; None for an id that shows nothing."""

    def __init__(self, backend: tokenizers.Tokenizer, skipped_ids: frozenset[int], spell: Callable[[str], Any]):
        self._backend = backend
        self._skipped = skipped_ids
        self._spell = spell

    def __missing__(self, token_id: int) -> Any:
        if len(self) >= MOST_REMEMBERED:
            self.clear()
        token = None if token_id in self._skipped else self._backend.id_to_token(token_id)
        piece = self[token_id] = None if token is None else self._spell(token)
        return piece


class _ByteLevelStream:
    """Bytes through an incremental UTF-8 decoder; invalid bytes become U+FFFD by the same rule as in Rust."""

    def __init__(self, pieces: _Pieces):
        self._pieces = pieces
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def push(self, token_ids: Sequence[int]) -> str:
        pieces = self._pieces
        return self._decode(b"".join([pieces[token_id] or b"" for token_id in token_ids]))

    def finish(self) -> str:
        return self._decode(b"", True)


class _ByteFallbackStream:
    """Text pieces (str) as they come, byte pieces (int) when their run has ended."""

    def __init__(self, pieces: _Pieces, strip_char: str, strip_count: int):
        self._pieces = pieces
        self._run = bytearray()
        self._strip_char = strip_char
        self._strip_left = strip_count

    def pass_over(self, prompt_token_ids: Sequence[int]) -> None:
        """Take in the prompt as far as it decides what is stripped from the start of the output."""
        for token_id in prompt_token_ids:
            if not self._strip_left:
                break
            self.push((token_id,))
        self.finish()

    def push(self, token_ids: Sequence[int]) -> str:
        pieces = self._pieces
        found: list[str] = []
        for token_id in token_ids:
            piece = pieces[token_id]
            if piece is None:
                continue
            if isinstance(piece, int):
                self._run.append(piece)
                continue
            if self._run:
                found.append(self._end_run())
            found.append(piece)
        return self._stripped("".join(found))

    def finish(self) -> str:
        return self._stripped(self._end_run())

    def _end_run(self) -> str:
        run, self._run = self._run, bytearray()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return _REPLACEMENT * len(run)

    def _stripped(self, text: str) -> str:
        """Text without the characters that the decoder strips from the very start."""
        while self._strip_left and text:
            if not text.startswith(self._strip_char):
                self._strip_left = 0
                break
            text = text[len(self._strip_char) :]
            self._strip_left -= 1
        return text


class _WindowStream:
    """The library's decode over a window of ids that begins a little before the text still to be given out.

    Right for every decoder in which a longer sequence only adds text behind a shorter one's, but for U+FFFD
    and byte tokens at its end, which wait. The window is shortened only where decoding its two halves gives
    the same text as decoding it whole.
    """

    _PROMPT_IDS = 16
    _WINDOW_IDS = 256

    def __init__(self, backend: tokenizers.Tokenizer, prompt_token_ids: Sequence[int], skipped_ids: frozenset[int]):
        self._backend = backend
        self._skipped = skipped_ids
        self._window = self._context(prompt_token_ids)
        self._given = len(self._decode(self._window))
        self._limit = self._WINDOW_IDS

    def push(self, token_ids: Sequence[int]) -> str:
        self._window.extend(token_ids)
        certain = len(self._window)
        while certain and self._may_change(self._window[certain - 1]):
            certain -= 1
        new = self._take(self._decode(self._window[:certain]).rstrip(_REPLACEMENT))
        if len(self._window) > self._limit:
            self._shorten()
        return new

    def finish(self) -> str:
        return self._take(self._decode(self._window))

    def _take(self, text: str) -> str:
        new = text[self._given :]
        self._given += len(new)
        return new

    def _shorten(self) -> None:
        half = len(self._window) // 2
        whole, head = self._decode(self._window), self._decode(self._window[:half])
        tail, link = self._decode(self._window[half - 1 :]), self._decode(self._window[half - 1 : half])
        if link and whole == head + tail[len(link) :] and self._given >= len(head):
            self._given -= len(head) - len(link)
            self._window = self._window[half - 1 :]
        self._limit = len(self._window) + self._WINDOW_IDS

    def _context(self, prompt_token_ids: Sequence[int]) -> list[int]:
        """The prompt's last ids, so that the output does not look like the start of a text."""
        context = list(prompt_token_ids[-self._PROMPT_IDS :])
        while context and (self._may_change(context[-1]) or self._decode(context).endswith(_REPLACEMENT)):
            context.pop()
        return context

    def _may_change(self, token_id: int) -> bool:
        """Whether this id, as the last, leaves open what is before it: a byte token, or one without text."""
        token = None if token_id in self._skipped else self._backend.id_to_token(token_id)
        return token is None or _BYTE_TOKEN.fullmatch(token) is not None

    def _decode(self, token_ids: list[int]) -> str:
        return self._backend.decode(token_ids, skip_special_tokens=bool(self._skipped))


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    """The decoder as a flat list of the library's own descriptions; empty if there is none."""
    decoder = backend.decoder
    if decoder is None:
        return []
    state = json.loads(decoder.__getstate__())
    return state["decoders"] if state["type"] == "Sequence" else [state]


def _is_byte_fallback(steps: list[dict[str, Any]]) -> bool:
    """Replace(s) of a plain string, ByteFallback, Fuse, and perhaps a Strip of the start."""
    kinds = [step["type"] for step in steps]
    if kinds and kinds[-1] == "Strip":
        if steps[-1]["stop"]:
            return False
        kinds.pop()
    plain = all("String" in step["pattern"] for step in steps if step["type"] == "Replace")
    return plain and kinds[-2:] == ["ByteFallback", "Fuse"] and set(kinds[:-2]) <= {"Replace"}


def _byte_fallback_speller(steps: list[dict[str, Any]]) -> Callable[[str], str | int]:
    replacements = [(step["pattern"]["String"], step["content"]) for step in steps if step["type"] == "Replace"]

    def spell(token: str) -> str | int:
        for old, new in replacements:
            token = token.replace(old, new)
        return int(token[3:5], 16) if _BYTE_TOKEN.fullmatch(token) else token

    return spell
