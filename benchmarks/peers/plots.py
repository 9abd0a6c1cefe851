"""Two pictures of a run: tokens a second by sequences at once, and milliseconds a token by context length."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from benchmarks.peers.ratios import OURS, Spread, standings
from benchmarks.peers.results import Results
from benchmarks.peers.works import CONCURRENCY_PLOT, CONTEXT_PLOT

Curve = dict[int, Spread]


def draw(results: Results, folder: Path) -> list[Path]:
    """Write throughput.png and context.png, those that there are figures for; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = results.machine()
    where = f"{machine['processor']}, {machine['threads']} threads, {machine['date']}"
    pictures = (
        ("throughput.png", CONCURRENCY_PLOT, _as_it_is, "sequences at once", "generated tokens a second"),
        ("context.png", CONTEXT_PLOT, _milliseconds, "tokens of context", "milliseconds a token, 1 sequence"),
    )
    paths = []
    for name, works, convert, x_label, y_label in pictures:
        curves = _curves(results, works, convert)
        if curves:
            _draw(folder / name, curves, f"SmolLM2-135M\n{where}", x_label, y_label)
            paths.append(folder / name)
    return paths


def _curves(results: Results, works: Mapping[int, str], convert: Callable[[Spread], Spread]) -> dict[str, Curve]:
    """By contender; each point in the format that was best there."""
    curves: dict[str, Curve] = defaultdict(dict)
    for x, work in works.items():
        for standing in standings(results.of(work)):
            curves[standing.contender][x] = convert(standing.rate)
    return curves


def _draw(path: Path, curves: Mapping[str, Curve], title: str, x_label: str, y_label: str) -> None:
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    for name, curve in curves.items():
        medians = [spread.median for spread in curve.values()]
        below = [spread.median - spread.least for spread in curve.values()]
        above = [spread.most - spread.median for spread in curve.values()]
        width = 2.2 if name == OURS else 1.4
        axes.errorbar(list(curve), medians, [below, above], label=name, marker="o", capsize=3, linewidth=width)
    ticks = sorted({x for curve in curves.values() for x in curve})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set(xlabel=x_label, ylabel=y_label, ylim=(0, None))
    axes.set_title(title, fontsize=9, loc="left")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _as_it_is(rate: Spread) -> Spread:
    return rate


def _milliseconds(rate: Spread) -> Spread:
    return Spread(1e3 / rate.median, 1e3 / rate.most, 1e3 / rate.least)
