"""Requests made from the server's own OpenAPI document, right ones and wrong ones, for as long as is asked for.

    python -m benchmarks.fuzz --minutes 10

Schemathesis (the extra `fuzz`) makes them and checks each answer: no 5xx; a status, a type and a body that the document
has for it; what the document forbids is refused; methods are those of the document. What it permits may be refused all
the same: a schema cannot say that two fields contradict each other. The model is tiny, with random weights. The exit
code is 1 if a check failed, a process grew, or the server is not well afterwards.

Now and then Schemathesis is stopped, so that the server can rest and hand back what it has freed; what it holds then is
sampled. The minutes are those in which requests are made: such a run takes half as long again. Before, the tokenizer is
asked for so many words that the number of those that it remembers, 10,000, does not grow any more.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2

from benchmarks.served import Footprint, ServedModel
from benchmarks.soak.memory import GROUPS, REST_S, fit
from benchmarks.tiny_model import tiny_model

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
)
CONFIG = """
[checks.negative_data_rejection]
expected-statuses = [400, 404, 405, 413]
"""
"""schemathesis.toml: a body may also be refused for its size, unread."""
MOST_GROWTH = 100.0
"""Bytes a request by which a process may surely grow: beyond the uncertainty that a run of this length leaves."""
WORDS_REMEMBERED = 10_000
_NUM_RESTS = GROUPS * 4 // 3
"""Some more than GROUPS, when the first fifth has been left out as warm-up."""
_FLAGS = ("--max-model-len=512", "--max-num-seqs=16", "--kv-cache-memory-bytes=4000000")
_GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


def num_answers(metrics: dict[str, float]) -> int:
    """HTTP answers so far."""
    return round(sum(value for name, value in metrics.items() if name.startswith("http_requests_total")))


def fill_word_cache(server: ServedModel) -> None:
    """Have more words tokenized than the tokenizer remembers, none of which comes twice."""
    for first in range(0, 4 * WORDS_REMEMBERED, 100):
        words = " ".join(f"{number:x}-{number * 7919:x}" for number in range(first, first + 100))
        httpx2.post(f"{server.url}/tokenize", json={"prompt": words}, timeout=60).raise_for_status()


def run_schemathesis(
    server: ServedModel, seconds: float, workers: int, seed: int, folder: Path
) -> tuple[int, list[tuple[int, dict[str, Footprint]]]]:
    """Its exit code, 0 if every check held; and at each rest how many answers there were and what the server held."""
    in_all = round(seconds + _NUM_RESTS * REST_S)
    command = ["schemathesis", "--no-color", "run", f"{server.url}/openapi.json", "--phases=coverage,fuzzing"]
    command += [f"--max-time={in_all}", f"--workers={workers}", f"--seed={seed}", f"--checks={','.join(CHECKS)}"]
    command += ["--continue-on-failure", "--request-timeout=60", "--suppress-health-check=all", "--warnings=off"]
    (folder / "schemathesis.toml").write_text(CONFIG)
    executable = Path(sys.executable).with_name("schemathesis")
    process = subprocess.Popen([str(executable), *command[1:]], cwd=folder, env={**os.environ, "COLUMNS": "160"})
    samples = []
    while not _ends_within(process, seconds / _NUM_RESTS):
        process.send_signal(signal.SIGSTOP)
        time.sleep(REST_S)
        samples.append((num_answers(server.metrics()), server.footprints()))
        process.send_signal(signal.SIGCONT)
    return process.returncode, samples


def _ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name)
        server = ServedModel(str(tiny_model(folder)), folder, *_FLAGS)
        try:
            fill_word_cache(server)
            failed, samples = run_schemathesis(server, 60 * options.minutes, options.workers, options.seed, folder)
            good = report(server, samples) and not failed
        finally:
            left = server.end()
        print("after SIGTERM: exit code 0, nothing is left" if not left else f"after SIGTERM: {left}   <- WRONG")
    sys.exit(0 if good and not left else 1)


def report(server: ServedModel, samples: list[tuple[int, dict[str, Footprint]]]) -> bool:
    """Print what became of the server; whether it is well."""
    metrics = server.metrics()
    by_status: dict[str, dict[str, int]] = {}
    for name, value in sorted(metrics.items()):
        if name.startswith("http_requests_total"):
            _, path, _, status, _ = name.split('"')
            by_status.setdefault(path, {})[status] = round(value)
    for path, counts in by_status.items():
        print(f"{path:34} " + ", ".join(f"{count:,} x {status}" for status, count in counts.items()))
    good = all(metrics[name] == 0 for name in _GAUGES)
    print(f"{num_answers(metrics):,} answers; in the end " + ", ".join(f"{name} {metrics[name]:g}" for name in _GAUGES))
    kept = samples[len(samples) // 5 :]
    if len(kept) < GROUPS:
        return good
    for process in kept[0][1]:
        held = [footprints[process] for _, footprints in kept]
        slope = fit([number for number, _ in kept], [footprint.nbytes for footprint in held])
        descriptors = max(footprint.descriptors for footprint in held)
        print(
            f"{process:34} {slope}; {held[0].nbytes / 1e6:.1f} to {held[-1].nbytes / 1e6:.1f} MB; {descriptors} files"
        )
        good &= slope.bytes_per_request - slope.uncertainty < MOST_GROWTH
    return good


if __name__ == "__main__":
    main()
