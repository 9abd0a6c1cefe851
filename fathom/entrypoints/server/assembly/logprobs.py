"""Logprobs in the two forms that OpenAI has: four parallel lists for completions, a list of objects for chat."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fathom.entrypoints.server.assembly.common import finite
from fathom.entrypoints.server.protocol.chat import ChatLogprobs, TokenLogprob, TopLogprob
from fathom.entrypoints.server.protocol.completion import CompletionLogprobs
from fathom.frontend.tokenizer.tokenizer import Tokenizer
from fathom.outputs import Logprob

Position = dict[int, Logprob]


@dataclass(frozen=True)
class TokenNames:
    """How tokens are written in logprobs: as their text, or as "token_id:N"."""

    tokenizer: Tokenizer | None
    as_ids: bool

    def name(self, token_id: int) -> str:
        if self.as_ids or self.tokenizer is None:
            return f"token_id:{token_id}"
        return self.tokenizer.token_strings([token_id])[0]

    def utf8(self, token_id: int) -> list[int] | None:
        """The token's bytes, which may be a part of a character."""
        return None if self.tokenizer is None else list(self.tokenizer.token_bytes(token_id))


class TextOffsets:
    """Where each token begins in a choice's text, in characters; call `next` with one token after the other.

    It follows from the tokens' bytes, so it is the same however the text is cut into chunks. A token that completes no
    character takes no room, nor does a special token that the text leaves out.
    """

    def __init__(self, tokenizer: Tokenizer | None, skip_special_tokens: bool, start: int = 0) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.all_special_ids if tokenizer is not None and skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at = start

    def next(self, token_id: int) -> int:
        """Where this token begins."""
        at = self._at
        self._at += len(self._characters(token_id))
        return at

    def next_of(self, token_id: int, text: str) -> int:
        """Where this token begins in a prompt's text, which may lack its BOS or its first space."""
        at = self._at
        characters = self._characters(token_id)
        if not text.startswith(characters, at):
            special = self._tokenizer is not None and token_id in self._tokenizer.all_special_ids
            characters = "" if special else characters.removeprefix(" ")
        self._at = min(at + len(characters), len(text))
        return at

    def _characters(self, token_id: int) -> str:
        if self._tokenizer is None or token_id in self._skipped:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))


def completion_logprobs(
    positions: Iterable[Position | None],
    token_ids: Sequence[int],
    top: int,
    names: TokenNames,
    offset_of: Callable[[int], int],
) -> CompletionLogprobs:
    """The lists for some tokens.

    Args:
        positions: of each token, itself first; None for the first token of a prompt.
        token_ids: the tokens.
        top: number of best ones of a position, beside the chosen one; -1: all.
        offset_of: where each begins in the text; called with one after the other.
    """
    found = CompletionLogprobs([], [], [], [])
    for token_id, position in zip(token_ids, positions, strict=True):
        found.tokens.append(names.name(token_id))
        found.text_offset.append(offset_of(token_id))
        found.token_logprobs.append(None if position is None else finite(position[token_id].logprob))
        found.top_logprobs.append(None if position is None else _top_by_name(position, token_id, top, names))
    return found


def chat_logprobs(
    positions: Iterable[Position | None], token_ids: Sequence[int], top: int, names: TokenNames
) -> ChatLogprobs:
    """One entry for each token, with the `top` best ones of its position; -1: all."""
    return ChatLogprobs(
        [
            TokenLogprob(
                names.name(token_id),
                finite(position[token_id].logprob),
                names.utf8(token_id),
                _top(position, top, names),
            )
            for token_id, position in zip(token_ids, positions, strict=True)
            if position is not None
        ]
    )


def _top_by_name(position: Position, chosen: int, top: int, names: TokenNames) -> dict[str, float]:
    """Name -> logprob. Of two tokens with the same text, as parts of characters have, the better one is kept."""
    best: dict[str, float] = {}
    for token_id, entry in position.items():
        if top >= 0 and (entry.rank or 0) > top and token_id != chosen:
            continue
        name = names.name(token_id)
        best[name] = max(best.get(name, -float("inf")), finite(entry.logprob))
    return best


def _top(position: Position, top: int, names: TokenNames) -> list[TopLogprob]:
    """The best tokens, best first. The chosen one, which a position always holds, counts only if it is one of them."""
    ranked = sorted(position.items(), key=lambda item: item[1].rank or 0)
    return [
        TopLogprob(names.name(token_id), finite(entry.logprob), names.utf8(token_id))
        for token_id, entry in ranked
        if top < 0 or (entry.rank or 0) <= top
    ]
