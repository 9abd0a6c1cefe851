"""`fathom bench latency`: what one user waits for, at one or more prompt lengths."""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from fathom.entrypoints.cli.bench.measure import Bench, Run, open_bench, seed_of
from fathom.entrypoints.cli.bench.report import Report, add_common_flags, describe_engine, publish
from fathom.entrypoints.cli.bench.roofline import Roofline, measure_roofline
from fathom.entrypoints.cli.bench.workload import Workload, add_workload_flags, at_least


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_workload_flags(parser, num_prompts=None, input_len=[128, 1024], output_len=128)
    parser.add_argument("--num-iters", type=at_least(1), default=5, help="measured runs of each length (%(default)s)")
    parser.add_argument("--num-iters-warmup", type=at_least(0), default=1, help="runs that are dropped (%(default)s)")
    add_common_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure each length in turn; the cache is empty at the start of every run."""
    with open_bench(options) as bench:
        workloads = [bench.make_workload(1, input_len, options.output_len) for input_len in options.input_len]
        bench.expect(len(workloads) * (options.num_iters_warmup + options.num_iters))
        runs = [_measure(bench, workload, options) for workload in workloads]
        roofline = measure_roofline(bench.engine)
        report = Report(
            "latency",
            {
                "input_len": options.input_len,
                "output_len": options.output_len,
                "seed": seed_of(options),
                "iterations": options.num_iters,
                "dropped": options.num_iters_warmup,
            },
            describe_engine(bench.engine),
            [_row(workload, some, roofline) for workload, some in zip(workloads, runs, strict=True)],
            ["medians; % of limit: the least time by memory (tokens) or arithmetic (prompt), over the time taken"],
            roofline,
        )
    return publish(report, options)


def _measure(bench: Bench, workload: Workload, options: argparse.Namespace) -> list[Run]:
    for _ in range(options.num_iters_warmup):
        bench.run(workload)
    return [bench.run(workload) for _ in range(options.num_iters)]


def _row(workload: Workload, runs: list[Run], roofline: Roofline) -> dict[str, Any]:
    (prompt,), (output_len,) = workload.prompts, workload.output_lens
    first = statistics.median(run.requests[0].first_token for run in runs)
    per_token = sorted(run.requests[0].per_token for run in runs)
    token = statistics.median(per_token)
    return {
        "input": len(prompt),
        "output": output_len,
        "first token ms": first * 1e3,
        "prompt tok/s": len(prompt) / first,
        "% of limit (prompt)": 100 * roofline.prompt_seconds(len(prompt)) / first,
        "ms/token": token * 1e3,
        "least": per_token[0] * 1e3,
        "most": per_token[-1] * 1e3,
        "tok/s": 1 / token,
        "% of limit (token)": 100 * roofline.step_seconds(len(prompt) + output_len / 2) / token,
    }
