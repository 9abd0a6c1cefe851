"""What a run found: a table for people (Markdown), a summary for programs (JSON), and its place in the docs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers.levels import AVX2, NATIVE
from benchmarks.peers.ratios import OURS, Spread, Standing, standings
from benchmarks.peers.results import Results
from benchmarks.peers.works import WORKS

BEGIN, END = "<!-- peers: begin (made by python -m benchmarks.peers --docs) -->", "<!-- peers: end -->"
MARKS = {
    NATIVE: (BEGIN, END),
    AVX2: (
        "<!-- peers at AVX2: begin (made by python -m benchmarks.peers --level avx2 --docs) -->",
        "<!-- peers at AVX2: end -->",
    ),
}
"""Where each level's table stands in the docs."""


def all_standings(results: Results) -> dict[str, list[Standing]]:
    """Of every work that has at least one round, in the works' order."""
    found = {work.name: standings(results.of(work.name)) for work in WORKS}
    return {name: some for name, some in found.items() if some}


def markdown(results: Results) -> str:
    """A heading line with date and machine, and a table of rates with a column for Fathom over the best rival."""
    found = all_standings(results)
    titles = {work.name: work.title for work in WORKS}
    met = dict.fromkeys(standing.contender for some in found.values() for standing in some)
    rivals = [name for name in met if name != OURS]
    lines = [
        _caption(results.machine()),
        "",
        f"| work | {' | '.join([OURS, *rivals])} | Fathom / best rival | pairs |",
        f"|{'---|' * (len(rivals) + 4)}",
    ]
    for name, some in found.items():
        by_name = {standing.contender: standing for standing in some}
        best = next((standing for standing in some if standing.ratio is not None), None)
        cells = [_rate(by_name.get(contender)) for contender in (OURS, *rivals)]
        cells += [_ratio(best.ratio), str(best.pairs)] if best is not None else ["-", "-"]
        lines.append(f"| {titles[name]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def ratio_lines(results: Results) -> list[str]:
    """Fathom over each rival, work by work, for the terminal."""
    return [
        f"{name:18} {OURS} / {standing.contender} ({standing.format}): {_ratio(standing.ratio)}, {standing.pairs} pairs"
        for name, some in all_standings(results).items()
        for standing in some
        if standing.ratio is not None
    ]


def write_summary(results: Results) -> Path:
    """The machine and all standings as JSON in the run's folder."""
    path = results.folder / "summary.json"
    found = {name: [asdict(standing) for standing in some] for name, some in all_standings(results).items()}
    path.write_text(json.dumps({"machine": results.machine(), "works": found}, indent=2) + "\n")
    return path


def with_table(page: str, table: str, begin: str = BEGIN, end: str = END) -> str:
    """The page with the table between its marks."""
    before, _, rest = page.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"the page has no {begin} ... {end}")
    return f"{before}{begin}\n{table}\n{end}{after}"


def _caption(machine: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    limited = "" if machine["level"] == NATIVE else f", everyone limited to {machine['level'].upper()}"
    where = f"{machine['processor']}{limited}, {machine['threads']} threads"
    return (
        f"{machine['date']}; {where}; {versions}. Tokens a second: the "
        "median of all rounds, with the least and the most; in brackets the format, if there was a choice."
    )


def _rate(standing: Standing | None) -> str:
    if standing is None:
        return "-"
    spread = f"{_number(standing.rate.median)} ({_number(standing.rate.least)}-{_number(standing.rate.most)})"
    return spread if standing.contender == OURS else f"{spread} [{standing.format}]"


def _ratio(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.median:.2f} ({spread.least:.2f}-{spread.most:.2f})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
