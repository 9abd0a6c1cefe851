"""LogprobsProcessor: collects one answer's logprobs, step by step, and looks into nothing until it is read."""

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
        self.positions = PositionLogprobs(decode, None if k < 0 else k)
        self._sum = 0.0
        self._num_summed = 0

    def cumulative(self, num_tokens: int) -> float:
        """The sum of the first tokens' logprobs; asked for no fewer of them than before."""
        for logprob in self.positions.chosen_logprobs(self._num_summed, num_tokens):
            self._sum += logprob
        self._num_summed = num_tokens
        return self._sum


def prompt_positions(arrays: LogprobsArrays | None, decode: Decode | None) -> PositionLogprobs:
    """A prompt's logprobs: None for its first token, then a row for each further one."""
    positions = PositionLogprobs(decode, leading_none=True)
    if arrays is not None:
        positions.append(arrays, 0, len(arrays))
    return positions
