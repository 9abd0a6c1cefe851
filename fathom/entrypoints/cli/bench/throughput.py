"""`fathom bench throughput`: how many tokens a second come out, by how many requests are under way at once."""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from fathom.entrypoints.cli.bench.measure import Run, open_bench
from fathom.entrypoints.cli.bench.report import Report, add_common_flags, describe_engine, publish
from fathom.entrypoints.cli.bench.roofline import Roofline, measure_roofline
from fathom.entrypoints.cli.bench.workload import Workload, add_workload_flags, at_least, ratio


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_workload_flags(parser, num_prompts=64, input_len=128, output_len=64)
    parser.add_argument(
        "--random-range-ratio",
        type=ratio,
        default=0.0,
        metavar="R",
        help="lengths vary from 1 - R to 1 + R times those given (%(default)s)",
    )
    parser.add_argument(
        "--max-concurrency",
        type=at_least(1),
        nargs="+",
        default=[1, 8, 64],
        metavar="N",
        help="requests under way at once, one row each (%(default)s)",
    )
    add_common_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Run the same requests at each concurrency, with an empty cache at the start."""
    with open_bench(options) as bench:
        shape = options.num_prompts, options.input_len, options.output_len
        workload = bench.make_workload(*shape, range_ratio=options.random_range_ratio)
        bench.expect(options.num_prompts * len(options.max_concurrency) + 1)
        bench.run(bench.make_workload(1, 16, 2))  # warm-up
        runs = [bench.run(workload, concurrency=concurrency) for concurrency in options.max_concurrency]
        roofline = measure_roofline(bench.engine)
        report = Report(
            "throughput",
            workload.describe(),
            describe_engine(bench.engine),
            [
                _row(concurrency, workload, run, roofline)
                for concurrency, run in zip(options.max_concurrency, runs, strict=True)
            ],
            ["% of limit: the least time that bandwidth and arithmetic allow for these tokens, over the time taken"],
            roofline,
        )
    return publish(report, options)


def _row(concurrency: int, workload: Workload, run: Run, roofline: Roofline) -> dict[str, Any]:
    return {
        "concurrency": concurrency,
        "seconds": run.seconds,
        "requests/s": len(run.requests) / run.seconds,
        "in tok/s": workload.num_prompt_tokens / run.seconds,
        "out tok/s": workload.num_output_tokens / run.seconds,
        "all tok/s": (workload.num_prompt_tokens + workload.num_output_tokens) / run.seconds,
        "first token ms": 1e3 * statistics.median(request.first_token for request in run.requests),
        "ms/token": 1e3 * statistics.median(request.per_token for request in run.requests),
        "% of limit": 100 * _least_seconds(concurrency, workload, roofline) / run.seconds,
    }


def _least_seconds(concurrency: int, workload: Workload, roofline: Roofline) -> float:
    """All prompts, then as many full steps as the answers need at this concurrency."""
    together = min(concurrency, len(workload.prompts))
    context = workload.num_prompt_tokens / len(workload.prompts) + max(workload.output_lens) / 2
    num_steps = (workload.num_output_tokens - len(workload.prompts)) / together
    prompts = sum(roofline.prompt_seconds(len(prompt)) for prompt in workload.prompts)
    return prompts + num_steps * roofline.step_seconds(context, together)
