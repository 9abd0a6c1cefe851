"""Report: what a benchmark found, with what is needed to run it again; as a table or as JSON."""

from __future__ import annotations

import argparse
import json
import platform
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fathom
from fathom.entrypoints.cli.bench.roofline import Roofline
from fathom.entrypoints.cli.engine_flags import add_engine_flags
from fathom.frontend.boot import uses_own_process
from fathom.frontend.engine import LLMEngine
from fathom.hardware import cpu_features

Row = Mapping[str, Any]
WIDTH = 110


@dataclass
class Report:
    """workload, engine: what was run. rows: the figures, one dictionary a line, all with the same keys.

    notes: lines below the table. roofline: the limits that percentages refer to. details: a second table, if any.
    """

    benchmark: str
    workload: dict[str, Any]
    engine: dict[str, Any]
    rows: Sequence[Row]
    notes: Sequence[str] = field(default_factory=list)
    roofline: Roofline | None = None
    details: Sequence[Row] = ()

    def as_json(self) -> str:
        return json.dumps(asdict(self) | {"versions": versions()}, indent=2)

    def as_text(self) -> str:
        """The table, with the workload above and the notes below."""
        head = [*_facts("workload", self.workload), *_facts("engine", self.engine)]
        notes = [*self.notes, *(self.roofline.lines() if self.roofline else [])]
        details = ["", *table_lines(self.details)] if self.details else []
        return "\n".join([*head, "", *table_lines(self.rows), *details, *([""] if notes else []), *notes])


def add_common_flags(parser: argparse.ArgumentParser) -> None:
    """--json, and every engine option."""
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="write everything as JSON to a file, or print that alone"
    )
    add_engine_flags(parser)


def publish(report: Report, options: argparse.Namespace) -> int:
    """Print the report as the flags say, and write the file if one was named. Returns the exit status."""
    if options.json != "-":
        print(report.as_text())
    if options.json == "-":
        print(report.as_json())
    elif options.json is not None:
        Path(options.json).write_text(report.as_json() + "\n", encoding="utf-8")
    return 0


def describe_engine(engine: LLMEngine) -> dict[str, Any]:
    """What answered: model, weights, threads, kernels, process."""
    config = engine.config
    worker, *_ = engine.collective_rpc("describe")  # all have the same kernels
    return {
        "model": config.model.model,
        "weights": config.model.weights,
        "dtype": config.model.dtype,
        "device": config.runtime.device,
        "threads": config.runtime.num_threads,
        "kernels": worker["kernels"],
        "workers": config.parallel.num_workers,
        "own_process": uses_own_process(config),
        "max_model_len": config.model.max_model_len,
        "max_num_seqs": config.scheduler.max_num_seqs,
        "max_num_batched_tokens": config.scheduler.max_num_batched_tokens,
        "kv_blocks": engine.ready.num_kv_blocks,
        "prefix_caching": config.cache.enable_prefix_caching,
    }


def versions() -> dict[str, Any]:
    """Of Fathom, Python and torch, and the processor."""
    return {
        "fathom": fathom.__version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "processor": f"{platform.machine()} {' '.join(cpu_features())}",
    }


def table_lines(rows: Sequence[Row]) -> list[str]:
    """Columns as wide as they must be; text to the left, numbers to the right."""
    names = list(rows[0])
    cells = [names, *([_shown(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    left = [isinstance(rows[0][name], str) for name in names]
    return [
        "  ".join(
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(line, widths, left, strict=True)
        ).rstrip()
        for line in cells
    ]


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 100 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _facts(title: str, facts: Mapping[str, Any]) -> list[str]:
    text = f"{title}: " + ", ".join(f"{name}={value}" for name, value in facts.items())
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
