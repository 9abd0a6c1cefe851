"""`fathom bench logprobs`: the same requests with none, and with more and more logprobs for each token."""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import msgspec

from fathom.entrypoints.cli.bench.measure import GREEDY, Bench, open_bench
from fathom.entrypoints.cli.bench.report import Report, add_common_flags, describe_engine, publish
from fathom.entrypoints.cli.bench.workload import Workload, add_workload_flags, at_least


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_workload_flags(parser, num_prompts=8, input_len=32, output_len=32)
    parser.add_argument(
        "--logprobs",
        type=at_least(0),
        nargs="+",
        default=[0, 20, 200],
        metavar="N",
        help="alternatives of each token, one row each; 0 is the token's own (%(default)s)",
    )
    parser.add_argument("--num-iters", type=at_least(1), default=5, help="measured rounds (%(default)s)")
    add_common_flags(parser)


def run(options: argparse.Namespace) -> int:
    """The settings take turns, so that all see the same machine; a ratio is that of one round."""
    settings = [None, *options.logprobs]
    with open_bench(options, max_logprobs=max(options.logprobs)) as bench:
        workload = bench.make_workload(options.num_prompts, options.input_len, options.output_len)
        bench.expect(options.num_prompts * len(settings) * (options.num_iters + 1))
        _round(bench, workload, settings)  # warm-up
        rounds = [_round(bench, workload, settings) for _ in range(options.num_iters)]
        engine = describe_engine(bench.engine)
    rows = [_row(setting, index, workload, rounds) for index, setting in enumerate(settings)]
    facts = workload.describe() | {"rounds": options.num_iters}
    return publish(Report("logprobs", facts, engine, rows, ["medians of all rounds"]), options)


def _round(bench: Bench, workload: Workload, settings: list[int | None]) -> list[float]:
    """Seconds of each setting."""
    return [bench.run(workload, msgspec.structs.replace(GREEDY, logprobs=setting)).seconds for setting in settings]


def _row(setting: int | None, index: int, workload: Workload, rounds: list[list[float]]) -> dict[str, Any]:
    seconds = statistics.median(times[index] for times in rounds)
    return {
        "logprobs": "none" if setting is None else str(setting),
        "seconds": seconds,
        "out tok/s": workload.num_output_tokens / seconds,
        "times none": statistics.median(times[index] / times[0] for times in rounds),
    }
