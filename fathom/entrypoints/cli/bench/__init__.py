"""`fathom bench`: what the engine does on this machine. One module for each benchmark, with `add_arguments` and `run`.

workload.py   requests made up from a seed
measure.py    an engine runs them, so many at a time; the times of each request
load.py       requests over HTTP, when they are due; latencies.py what their answers amount to
roofline.py   the least time that this machine would need for them
report.py     what comes out: a table, or JSON with everything that is needed to run it again
"""

from __future__ import annotations

import argparse
import importlib

from fathom.entrypoints.cli.stream import quiet_unless

BENCHMARKS = {
    "latency": "one request at a time: time to the first token, and for each token after it",
    "throughput": "many requests: tokens a second, by how many run at once",
    "startup": "from a fresh process to the first token, in phases",
    "prefix": "requests with a common beginning, with and without the prefix cache",
    "serve": "requests to a server of OpenAI's API, by rate or by how many are under way",
    "logprobs": "what asking for logprobs costs",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    subparsers = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    for name, summary in BENCHMARKS.items():
        description = f"{summary[0].upper()}{summary[1:]}."
        command = subparsers.add_parser(name, help=summary, description=description, allow_abbrev=False)
        module = importlib.import_module(f"{__name__}.{name}")
        module.add_arguments(command)
        command.set_defaults(run_benchmark=module.run)


def run(options: argparse.Namespace) -> int:
    """Run the benchmark that was named; figures go to standard output, progress to standard error."""
    quiet_unless(verbose=False)
    return int(options.run_benchmark(options))
