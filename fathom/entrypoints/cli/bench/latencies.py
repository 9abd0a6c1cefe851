"""What the answers of a load amount to: rates, percentiles, and the share of requests that met their targets."""

from __future__ import annotations

import argparse
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fathom.entrypoints.cli.bench.load import Answer

PERCENTILES = (50, 90, 99)
TARGETS = ("ttft", "tpot", "e2el")
"""What --goodput may limit: time to first token, time for each token after it, time to the end of the answer."""


def values_of(metric: str, answers: Sequence[Answer]) -> list[float]:
    """Milliseconds: of each gap for "itl", else of each request that has the metric."""
    if metric == "itl":
        seconds = [gap for answer in answers for gap in answer.gaps]
    elif metric == "tpot":
        seconds = [answer.per_token for answer in answers if answer.per_token is not None]
    else:
        seconds = [answer.first_token if metric == "ttft" else answer.end for answer in answers]
    return [1e3 * value for value in seconds]


def percentile(values: Sequence[float], percent: float) -> float:
    """Of values in any order, linear between neighbours, as numpy has it."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def rates(seconds: float, answers: Sequence[Answer], targets: dict[str, float]) -> dict[str, Any]:
    """Counts and rates of one run; failed requests count for no rate. Goodput only if there are targets."""
    succeeded = [answer for answer in answers if answer.error is None]
    row: dict[str, Any] = {
        "succeeded": len(succeeded),
        "failed": len(answers) - len(succeeded),
        "seconds": seconds,
        "in tokens": sum(answer.prompt_tokens or 0 for answer in succeeded),
        "out tokens": sum(answer.num_output for answer in succeeded),
        "requests/s": len(succeeded) / seconds,
        "out tok/s": sum(answer.num_output for answer in succeeded) / seconds,
    }
    if targets:
        row["good requests/s"] = sum(meets(answer, targets) for answer in succeeded) / seconds
    return row


def meets(answer: Answer, targets: dict[str, float]) -> bool:
    """Whether a request was within all targets, in milliseconds. One token alone has no time for each further one."""
    return all(value <= limit for metric, limit in targets.items() for value in values_of(metric, [answer]))


def latencies(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """A row for each metric, of the requests that succeeded; none if there are none."""
    succeeded = [answer for answer in answers if answer.error is None]
    rows = []
    for metric in ("ttft", "tpot", "itl", "e2el"):
        if values := values_of(metric, succeeded):
            found = {f"p{percent}": percentile(values, percent) for percent in PERCENTILES}
            rows.append({"ms": metric, "mean": statistics.fmean(values)} | found | {"most": max(values)})
    return rows


def failures(answers: Sequence[Answer], shown: int = 3) -> list[str]:
    """The commonest errors, a line each."""
    counted = Counter(answer.error for answer in answers if answer.error is not None)
    return [f"{number} failed: {error}" for error, number in counted.most_common(shown)]


def target(text: str) -> tuple[str, float]:
    """A type for argparse: NAME:MILLISECONDS."""
    name, _, limit = text.partition(":")
    try:
        milliseconds = float(limit)
    except ValueError:
        milliseconds = 0.0
    if name not in TARGETS or not milliseconds > 0:
        raise argparse.ArgumentTypeError(f"must be like ttft:200, with one of {', '.join(TARGETS)}; got {text}")
    return name, milliseconds
