"""What both kinds of answers need: who the answer is from, the usage, and what is explained."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol, TypeVar

from msgspec import UNSET, UnsetType

import fathom
from fathom.entrypoints.server.protocol.common import (
    CompletionTokensDetails,
    Explanation,
    PromptTokensDetails,
    Usage,
)
from fathom.outputs import PositionLogprobs, RequestOutput
from fathom.sampling_params import SamplingParams


@dataclass(frozen=True)
class Envelope:
    """What every chunk of one answer repeats, and when it carries the usage."""

    id: str
    created: int
    model: str
    fingerprint: str
    include_usage: bool = False
    continuous_usage: bool = False

    @property
    def no_usage(self) -> UnsetType | None:
        """The usage of a chunk that has none: null if a usage chunk follows, else left out."""
        return None if self.include_usage else UNSET


_DIGITS = string.digits + string.ascii_lowercase


def call_id(envelope: Envelope, choice: int, call: int) -> str:
    """The id of a tool call: nine letters and digits, as Mistral's templates insist and every other one takes."""
    text = f"{envelope.id} {envelope.created} {choice} {call}"
    number = int.from_bytes(hashlib.sha256(text.encode()).digest())
    return "".join([_DIGITS[number // 36**place % 36] for place in range(9)])


class Part(Protocol):
    """A choice of a chunk. index: of the answer that it is a part of."""

    index: int


P = TypeVar("P", bound=Part)


def parts_by_answer(parts: Iterable[P]) -> list[list[P]]:
    """The parts of each answer, as they came, in the order of the answers' indices."""
    index_of = attrgetter("index")
    return [list(found) for _, found in groupby(sorted(parts, key=index_of), index_of)]


class UsageCounter:
    """Tokens of the prompts, each once, and of all that was generated.

    Args:
        prompt_lengths: tokens of each prompt.
    """

    def __init__(self, prompt_lengths: list[int]) -> None:
        self._prompt_tokens = sum(prompt_lengths)
        self._cached: list[int | None] = [None] * len(prompt_lengths)
        self._completion_tokens = 0

    def add(self, prompt: int, output: RequestOutput) -> None:
        """Take in one output of a prompt. Of its n answers, the one with the fewest cached tokens computed the rest."""
        for answer in output.outputs:
            self._completion_tokens += len(answer.token_ids)
        cached, known = output.num_cached_tokens, self._cached[prompt]
        if cached is not None and (known is None or cached < known):
            self._cached[prompt] = cached

    def drop_generated(self) -> None:
        """Count nothing as generated: max_tokens=0 samples a token that nobody asked for."""
        self._completion_tokens = 0

    def usage(self, reasoning_tokens: int | None = None) -> Usage:
        """The usage so far; with reasoning_tokens, where reasoning is told apart."""
        return Usage(
            self._prompt_tokens,
            self._completion_tokens,
            self._prompt_tokens + self._completion_tokens,
            PromptTokensDetails(sum(cached or 0 for cached in self._cached)),
            UNSET if reasoning_tokens is None else CompletionTokensDetails(reasoning_tokens),
        )


@dataclass(frozen=True)
class Explainer:
    """Says what was done for an answer, from the parameters in effect and the last output."""

    params: SamplingParams
    model: str

    def explain(self, output: RequestOutput) -> Explanation:
        """The explanation of an answer whose last output this is."""
        times = output.metrics
        assert times is not None
        return Explanation(
            sampling_params={name: getattr(self.params, name) for name in _EXPLAINED},
            cached_tokens=output.num_cached_tokens or 0,
            num_preemptions=times.num_preemptions,
            queue_ms=_ms(times.arrival_time, times.scheduled_time),
            prefill_ms=_ms(times.scheduled_time, times.first_token_time),
            decode_ms=_ms(times.first_token_time, times.last_token_time),
            model=self.model,
            version=fathom.__version__,
        )


_INTERNAL = ("output_kind", "detokenize", "eos_token_ids", "bad_words_token_ids")
_EXPLAINED = tuple(name for name in SamplingParams.__struct_fields__ if name not in _INTERNAL)


def _ms(start: float, end: float) -> float:
    return round(1000 * (end - start), 3) if start and end else 0.0


def prompt_logprobs_field(positions: PositionLogprobs | None) -> list[dict[int, Any] | None] | UnsetType:
    """prompt_logprobs of an answer: for each prompt token, token id -> logprob, rank and text; null for the first."""
    if positions is None:
        return UNSET
    return [
        None
        if position is None
        else {
            token_id: {"logprob": finite(entry.logprob), "rank": entry.rank, "decoded_token": entry.decoded_token}
            for token_id, entry in position.items()
        }
        for position in positions
    ]


LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON has not."""


def finite(logprob: float) -> float:
    """A logprob that JSON can carry."""
    return logprob if logprob >= LEAST_LOGPROB else LEAST_LOGPROB
