"""What a caller gets back: RequestOutput, one CompletionOutput for each answer, and their logprobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from fathom.step import LogprobsArrays


@dataclass(slots=True)
class Logprob:
    """One token's score at one position. rank: 1 is the most likely. decoded_token: its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class PositionLogprobs(Sequence["dict[int, Logprob] | None"]):
    """For each position, token id -> Logprob: the chosen token first, then the best ones.

    Kept as rows of the engine's arrays; a position's dictionary is made when it is looked at, so that asking for many
    logprobs and reading few costs little. Behaves like a list.

    Args:
        decode: token ids -> their texts, or None to leave decoded_token empty.
        k: how many best tokens are shown of each position; None: all that the arrays have.
        leading_none: whether position 0 has no logprobs (the first token of a prompt).
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], list[str]] | None,
        k: int | None = None,
        *,
        leading_none: bool = False,
    ) -> None:
        self._decode = decode
        self._k = k
        self._leading = 1 if leading_none else 0
        self._rows: list[tuple[LogprobsArrays, int]] = []

    def append(self, arrays: LogprobsArrays, first: int, count: int = 1) -> None:
        """Add `count` positions: rows of the arrays, from `first` on."""
        self._rows += [(arrays, row) for row in range(first, first + count)]

    def span(self, start: int, end: int) -> PositionLogprobs:
        """Positions start .. end-1, of those without a leading None, unaffected by what is appended later."""
        part = PositionLogprobs(self._decode, self._k)
        part._rows = self._rows[start:end]
        return part

    def extend(self, later: PositionLogprobs) -> None:
        """Add the positions of another, which has no leading None, at the end."""
        self._rows += later._rows

    def chosen_logprobs(self, start: int, end: int) -> list[float]:
        """The chosen tokens' own, of positions as of `span`."""
        return [arrays.chosen_logprob(row) for arrays, row in self._rows[start:end]]

    def __len__(self) -> int:
        return self._leading + len(self._rows)

    @overload
    def __getitem__(self, index: int) -> dict[int, Logprob] | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[int, Logprob] | None]: ...
    def __getitem__(self, index: int | slice) -> dict[int, Logprob] | list[dict[int, Logprob] | None] | None:
        if isinstance(index, slice):
            return [self._position(i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._position(index % len(self))

    def __iter__(self) -> Iterator[dict[int, Logprob] | None]:
        return map(self._position, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (PositionLogprobs, list)) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        """Copies and pickles are plain lists, so that no tokenizer goes along."""
        return list, (list(self),)

    def _position(self, index: int) -> dict[int, Logprob] | None:
        index -= self._leading
        if index < 0:
            return None
        arrays, row = self._rows[index]
        width = None if self._k is None else 1 + self._k
        token_ids = arrays.token_ids[row, :width].tolist()
        logprobs = arrays.logprobs[row, :width].tolist()
        texts = self._decode(token_ids) if self._decode is not None else [None] * len(token_ids)
        entries = {token_ids[0]: Logprob(logprobs[0], int(arrays.ranks[row]), texts[0])}
        for rank, (token_id, logprob, text) in enumerate(
            zip(token_ids[1:], logprobs[1:], texts[1:], strict=True), start=1
        ):
            entries.setdefault(token_id, Logprob(logprob, rank, text))
        return entries


@dataclass(slots=True)
class CompletionOutput:
    """One answer.

    finish_reason: "stop", "length", "abort", "error", or None while it goes on. stop_reason: the stop string or
    stop token id that ended it; None for end-of-sequence. error: what went wrong, with finish_reason "error".
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: PositionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None

    def extend(self, later: CompletionOutput) -> None:
        """Take in what came after this, if both are deltas of the same answer."""
        self.text += later.text
        self.token_ids += later.token_ids
        if self.logprobs is not None and later.logprobs is not None:
            self.logprobs.extend(later.logprobs)
        self.cumulative_logprob = later.cumulative_logprob
        self.finish_reason, self.stop_reason, self.error = later.finish_reason, later.stop_reason, later.error


@dataclass(slots=True)
class RequestMetrics:
    """When things happened to a request, as time.time(); 0.0: not yet.

    num_generation_tokens: tokens of the answer; what was computed past a stop string is none of it.
    """

    arrival_time: float = 0.0
    scheduled_time: float = 0.0
    first_token_time: float = 0.0
    last_token_time: float = 0.0
    num_generation_tokens: int = 0
    num_preemptions: int = 0

    @property
    def first_token_latency(self) -> float:
        """Seconds from arrival to the first token."""
        return self.first_token_time - self.arrival_time if self.first_token_time else 0.0

    def copy(self) -> RequestMetrics:
        """What is known now, unaffected by what happens later."""
        return RequestMetrics(
            self.arrival_time,
            self.scheduled_time,
            self.first_token_time,
            self.last_token_time,
            self.num_generation_tokens,
            self.num_preemptions,
        )


@dataclass(slots=True)
class RequestOutput:
    """A request and its answers, so far or in the end.

    prompt: the text, if it came as text. prompt_logprobs: one entry for each prompt token, None for the first.
    num_cached_tokens: prompt tokens whose keys and values came from the prefix cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    prompt_logprobs: PositionLogprobs | None = None
    num_cached_tokens: int | None = None
    metrics: RequestMetrics | None = None

    def add(self, later: RequestOutput, *, aggregate: bool) -> None:
        """Take in a later output of the same request: its deltas are appended (aggregate), else they replace."""
        for answer in later.outputs:
            for place, own in enumerate(self.outputs):
                if own.index == answer.index:
                    if aggregate:
                        own.extend(answer)
                    else:
                        self.outputs[place] = answer
                    break
            else:
                self.outputs.append(answer)
        self.finished = later.finished
        self.prompt_logprobs = later.prompt_logprobs
        if self.num_cached_tokens is None or later.num_cached_tokens is None:
            self.num_cached_tokens = later.num_cached_tokens
        else:  # of n answers, the one that found the least has computed the rest for the others
            self.num_cached_tokens = min(self.num_cached_tokens, later.num_cached_tokens)
        self.metrics = later.metrics
