"""LogprobsProcessor: collects one answer's logprobs, step by step, and decodes nothing until it is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fathom.outputs import PositionLogprobs
from fathom.step import LogprobsArrays

Decode = Callable[[Sequence[int]], list[str]]


class LogprobsProcessor:
    """Logprobs of one answer's tokens.

    Args:
        k: how many best tokens the request asked for; -1 for all. A step's arrays may be wider.
        decode: token ids -> texts, or None without a tokenizer.
    """

    def __init__(self, k: int, decode: Decode | None) -> None:
        self.positions = PositionLogprobs(decode)
        self.cumulative = 0.0
        self._width = None if k < 0 else 1 + k

    def add(self, arrays: LogprobsArrays, row: int) -> None:
        """Take this answer's row of a step."""
        logprobs = arrays.logprobs[row, : self._width]
        self.positions.append(arrays.token_ids[row, : self._width], logprobs, int(arrays.ranks[row]))
        self.cumulative += float(logprobs[0])


def prompt_positions(arrays: LogprobsArrays | None, decode: Decode | None) -> PositionLogprobs:
    """A prompt's logprobs: None for its first token, then a row for each further one."""
    positions = PositionLogprobs(decode, leading_none=True)
    if arrays is not None:
        for token_ids, logprobs, rank in zip(arrays.token_ids, arrays.logprobs, arrays.ranks, strict=True):
            positions.append(token_ids, logprobs, int(rank))
    return positions
