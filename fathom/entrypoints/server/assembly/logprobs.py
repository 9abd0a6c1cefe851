"""Logprobs in the two forms that OpenAI has: four parallel lists for completions, a list of objects for chat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


def completion_logprobs(
    positions: Iterable[Position | None], token_ids: Sequence[int], top: int, names: TokenNames, offset: int
) -> tuple[CompletionLogprobs, int]:
    """The lists for some tokens, and the offset of the token after them.

    Args:
        positions: of each token, itself first; None for the first token of a prompt.
        token_ids: the tokens.
        top: number of best ones of a position, beside the chosen one; -1: all.
        offset: where the first of them begins in the text.
    """
    found = CompletionLogprobs([], [], [], [])
    for token_id, position in zip(token_ids, positions, strict=True):
        name = names.name(token_id)
        found.tokens.append(name)
        found.text_offset.append(offset)
        found.token_logprobs.append(None if position is None else finite(position[token_id].logprob))
        found.top_logprobs.append(None if position is None else _top_by_name(position, token_id, top, names))
        offset += len(name)
    return found, offset


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
