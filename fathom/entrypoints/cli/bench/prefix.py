"""`fathom bench prefix`: what the prefix cache saves when requests begin alike, as behind one system prompt."""

from __future__ import annotations

import argparse
from typing import Any

from fathom.entrypoints.cli.bench.measure import Run, open_bench
from fathom.entrypoints.cli.bench.report import Report, add_common_flags, describe_engine, publish
from fathom.entrypoints.cli.bench.workload import Workload, add_workload_flags, at_least


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_workload_flags(parser, num_prompts=16, input_len=32, output_len=32)
    parser.add_argument(
        "--prefix-len",
        type=at_least(1),
        default=1000,
        help="tokens that all prompts begin with, on top of --input-len (%(default)s)",
    )
    add_common_flags(parser)


def run(options: argparse.Namespace) -> int:
    """The same requests four ways.

    prefix alone: one request that is only the prefix, cache empty. cached before: the prefix was computed by an
    earlier request. shared: cache empty, all submitted at once. not shared: each with a cache salt of its own.
    """
    with open_bench(options, enable_prefix_caching=True) as bench:
        shape = options.num_prompts, options.input_len, options.output_len
        workload = bench.make_workload(*shape, prefix_len=options.prefix_len)
        alone = Workload([workload.prompts[0][: options.prefix_len]], [1], {})
        bench.expect(3 * options.num_prompts + 3)
        bench.run(bench.make_workload(1, 16, 2))  # warm-up
        runs = {
            "prefix alone": bench.run(alone),
            "cached before": bench.run(workload, keep_cache=True),
            "shared": bench.run(workload),
            "not shared": bench.run(workload, cache_salts=[str(number) for number in range(options.num_prompts)]),
        }
        engine = describe_engine(bench.engine)
    ideal = runs["prefix alone"].seconds + runs["cached before"].seconds
    notes = [
        f"shared / (prefix alone + cached before) = {runs['shared'].seconds / ideal:.2f}",
        f"not shared / shared = {runs['not shared'].seconds / runs['shared'].seconds:.2f}",
    ]
    return publish(Report("prefix", workload.describe(), engine, _rows(runs), notes), options)


def _rows(runs: dict[str, Run]) -> list[dict[str, Any]]:
    return [
        {
            "requests": name,
            "number": len(run.requests),
            "seconds": run.seconds,
            "cached tokens": sum(request.num_cached for request in run.requests),
            "last first token ms": 1e3 * max(request.first_token for request in run.requests),
        }
        for name, run in runs.items()
    ]
