"""The latencies of a load as a picture: for each metric, what share of requests were at most so slow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

from fathom.entrypoints.cli.bench.latencies import values_of

if TYPE_CHECKING:
    from fathom.entrypoints.cli.bench.load import Answer

TITLES = {"ttft": "time to first token", "tpot": "time for each further token", "e2el": "time to the end"}


def draw(settings: Sequence[tuple[str, Sequence[Answer]]], path: Path) -> None:
    """One panel for each metric, one line for each (label, answers); the file's ending decides its format."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(TITLES), figsize=(12, 4), sharey=True, layout="constrained")
    for panel, (metric, title) in zip(panels, TITLES.items(), strict=True):
        for label, answers in settings:
            values = sorted(values_of(metric, [answer for answer in answers if answer.error is None]))
            shares = [100 * index / len(values) for index in range(len(values) + 1)] if values else []
            panel.step([*values[:1], *values], shares, where="post", label=label)
        panel.set(title=title, xlabel="ms", xlim=(0, None), ylim=(0, 100))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("% of requests")
    panels[-1].legend(loc="lower right")
    figure.savefig(path)
    pyplot.close(figure)
