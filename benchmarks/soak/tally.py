"""The server's counters against what the clients saw.

What a client saw must have been counted. Of one that went away nobody knows how far its request came, so its answers
and tokens may have been counted or not, and so may the prompt of one that met its deadline. Where nobody goes away and
there are no deadlines, the counters are what was seen, to the last token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from benchmarks.soak.clients import Seen
from benchmarks.soak.workload import CONTEXT

_REASONS = ("stop", "length", "abort", "error")


@dataclass(frozen=True)
class Row:
    """A counter's growth, and between what it should be."""

    name: str
    counted: int
    least: int
    most: int

    @property
    def right(self) -> bool:
        return self.least <= self.counted <= self.most

    def __str__(self) -> str:
        bounds = f"{self.least:,}" if self.least == self.most else f"{self.least:,} to {self.most:,}"
        return f"{self.name:34} {self.counted:>12,}   seen {bounds}{'' if self.right else '   WRONG'}"


@dataclass
class Tally:
    """What clients saw."""

    asked: int = 0
    invalid: int = 0
    left: Counter[str] = field(default_factory=Counter)
    left_answers: int = 0
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    late_prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, seen: Seen) -> None:
        """Take in what became of a request."""
        asked = seen.asked
        self.asked += 1
        self.invalid += not asked.valid
        if seen.problem is not None:
            self.problems.append(f"request {asked.number} to {asked.path}: {seen.problem}")
        if asked.left is not None and not seen.reasons:
            self.left[asked.left] += 1
            self.left_answers += asked.answers
        elif seen.status is not None:
            self.statuses[asked.path, seen.status] += 1
        self.reasons.update(seen.reasons)
        self.prompt_tokens += seen.prompt_tokens
        self.late_prompt_tokens += seen.prompt_tokens if "abort" in seen.reasons else 0
        self.completion_tokens += seen.completion_tokens
        self.cached_tokens += seen.cached_tokens

    def rows(self, before: Mapping[str, float], after: Mapping[str, float]) -> Iterable[Row]:
        """Every counter that clients know something about."""

        def grown(name: str) -> int:
            return round(after.get(name, 0) - before.get(name, 0))

        unknown = self.left_answers
        for reason in _REASONS:
            seen = self.reasons[reason]
            counted = grown(f'request_success_total{{finished_reason="{reason}"}}')
            yield Row(f"answers that ended by {reason}", counted, seen, seen + (unknown if reason != "error" else 0))
        answers, late = self.reasons.total(), self.reasons["abort"]
        for name, counter, seen, perhaps, of_each in (
            ("times to a first token", "time_to_first_token_seconds_count", answers, late, 1),
            ("times to the end", "e2e_request_latency_seconds_count", answers, 0, 1),
            ("prompt tokens", "prompt_tokens_total", self.prompt_tokens, self.late_prompt_tokens, CONTEXT),
            ("cached prompt tokens", "prompt_tokens_cached_total", self.cached_tokens, 0, CONTEXT),
            ("generated tokens", "generation_tokens_total", self.completion_tokens, 0, CONTEXT),
        ):
            yield Row(name, grown(counter), seen - perhaps, seen + unknown * of_each)
        for (path, status), seen in sorted(self.statuses.items()):
            if status != 404 or not path[-1].isdigit():  # paths that do not exist are not counted
                counted = grown(f'http_requests_total{{path="{path}",status="{status}"}}')
                yield Row(f"{status} of {path}", counted, seen, seen + (unknown if status == 200 else 0))
