"""`fathom bench startup`: fresh processes, from `python` to the first token, phase by phase."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from tqdm import tqdm

from fathom.entrypoints.cli.bench.report import Report, add_common_flags, publish
from fathom.entrypoints.cli.bench.workload import at_least
from fathom.entrypoints.cli.engine_flags import config_from_flags
from fathom.errors import EngineStartError

# What a user's script does. Times are time.time(), which parent and child share.
SCRIPT = """
import json, sys, time
marks = [time.time()]
import fathom
marks.append(time.time())
from fathom import EngineConfig, LLMEngine, SamplingParams
marks.append(time.time())
engine = LLMEngine(EngineConfig.from_options(**json.loads(sys.argv[1])))
marks.append(time.time())
engine.add_request("first", [1, 2, 3], SamplingParams(temperature=0, max_tokens=1))
while engine.has_unfinished_requests():
    engine.step()
marks.append(time.time())
from fathom.entrypoints.cli.bench.report import describe_engine
print(json.dumps({"marks": marks, "phases": engine.ready.phases, "engine": describe_engine(engine)}))
"""
STAGES = ("python starts", "import fathom", "import the engine's caller", "engine ready", "first token")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num-iters", type=at_least(1), default=5, help="measured starts (%(default)s)")
    parser.add_argument(
        "--num-iters-warmup", type=at_least(0), default=1, help="starts that fill the disk cache (%(default)s)"
    )
    add_common_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Start, answer with one token, end; again and again."""
    config = config_from_flags(options).replace(show_progress=False)
    flat = {name: value for section in vars(config).values() for name, value in vars(section).items()}
    total = options.num_iters_warmup + options.num_iters
    shown = config_from_flags(options).runtime.show_progress
    bar = tqdm(range(total), desc="startup", unit="start", dynamic_ncols=True, disable=not shown)
    starts = [_start(flat) for _ in bar][options.num_iters_warmup :]
    rows = [_row(stage, [start["stages"][stage] for start in starts]) for stage in starts[0]["stages"]]
    workload = {"starts": options.num_iters, "dropped": options.num_iters_warmup}
    return publish(Report("startup", workload, starts[0]["engine"], rows), options)


def _start(flat: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each stage of one start, and the engine's description."""
    spawned = time.time()
    command = [sys.executable, "-c", SCRIPT, json.dumps(flat)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise EngineStartError(f"a start failed: {(ended.stderr.strip().splitlines() or ['no message'])[-1]}")
    found = json.loads(ended.stdout.splitlines()[-1])
    marks = [spawned, *found["marks"]]
    stages = {name: marks[index + 1] - marks[index] for index, name in enumerate(STAGES)}
    stages["total"] = marks[-1] - spawned
    stages |= {f"  engine: {name}": seconds for name, seconds in found["phases"]}
    return {"stages": stages, "engine": found["engine"]}


def _row(stage: str, seconds: list[float]) -> dict[str, Any]:
    return {"stage": stage, "seconds": statistics.median(seconds), "least": min(seconds), "most": max(seconds)}
