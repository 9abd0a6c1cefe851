"""Run the soak, print what came of it, and end with exit code 1 if anything is not as it should be.

    python -m benchmarks.soak                              # 5,000 requests to the default model, after 1,000 to warm up
    python -m benchmarks.soak --model tiny --requests 20000 --warm-up 12000

A fifth of the clients go away, in the queue, while their prompt is read, or in the middle of an answer; a tenth sends
what is no request. The KV cache is small, so that it is soon used up and answers lose their place now and then. After
the warm-up the requests come in waves. Between two of them the server rests until it has handed back what it had freed,
and what it holds then is sampled; the growth is the slope of a least-squares line. The warm-up ends in such waves too,
since a heap that rests now and then settles elsewhere than one that never does. In a last part nobody goes away: there
the counters must be what the clients saw, to the last token. Flags that are not known here are the server's.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from benchmarks.served import Footprint, ServedModel
from benchmarks.soak.clients import ask_all
from benchmarks.soak.memory import GROUPS, REST_S, fit
from benchmarks.soak.tally import Tally
from benchmarks.soak.workload import CHAT_TEMPLATE, CONTEXT, MAX_BODY_BYTES, Workload
from benchmarks.tiny_model import TINY, tiny_model

MOST_GROWTH = 100.0
"""Bytes a request by which a process may grow."""
SETTLING_WAVES = 8
"""Of the warm-up's end."""
KV_CACHE_BYTES = {TINY: 4_000_000}
"""Room for about 5,000 tokens, at most 16 answers' share of which is 2,048."""
KV_CACHE_BYTES_ELSE = 110_000_000
_GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


class Soak:
    """One run against a server that runs already.

    numbers: which requests belong to which part. rest_s: how long the server rests after each wave.
    """

    def __init__(
        self,
        server: ServedModel,
        requests: int,
        concurrency: int,
        seed: int,
        warm_up: int | None = None,
        rest_s: float = REST_S,
    ) -> None:
        self._server = server
        self._concurrency = concurrency
        self._rest_s = rest_s
        first = requests // 5 if warm_up is None else warm_up
        last = first + requests
        self.numbers = {
            "warm-up": range(first),
            "soak": range(first, last),
            "closing": range(last, last + requests // 10),
        }
        self._workload = Workload(seed, first_staying=last)
        self._samples: list[tuple[int, dict[str, Footprint]]] = []
        self.failures: list[str] = []

    def run(self) -> None:
        """Ask, and print; what is not as it should be goes to `failures`."""
        tallies = [self._ask(part) for part in self.numbers]
        self._print_footprints(tallies[0].asked)
        print("\ngauges")
        gauges = self._server.metrics()
        for name in _GAUGES:
            self._report(f"{name:34} {gauges[name]:12g}", gauges[name] == 0)
        print(f"{'preemptions':34} {gauges['num_preemptions_total']:12,.0f}")

    def _ask(self, part: str) -> Tally:
        """One part of the requests, its counters compared with what was seen."""
        tally = Tally()
        before, began = self._server.metrics(), time.perf_counter()
        for wave in self._waves(part):
            asyncio.run(ask_all(self._server.url, self._workload, wave, self._concurrency, tally.add))
            after = self._idle_metrics()
            if part != "closing":
                time.sleep(self._rest_s)
            if part == "soak":
                self._samples.append((tally.asked, self._server.footprints()))
        seconds = time.perf_counter() - began
        left = ", ".join(f"{count:,} in {where}" for where, count in sorted(tally.left.items()))
        print(
            f"\n{part}: {tally.asked:,} requests in {seconds:.0f} s, {tally.invalid:,} invalid; left: {left or 'none'}"
        )
        for row in tally.rows(before, after):
            self._report(str(row), row.right)
        for problem in tally.problems[:10]:
            self._report(problem, False)
        return tally

    def _waves(self, part: str) -> list[range]:
        """What is asked at once; the server is idle in between."""
        numbers = self.numbers[part]
        if part == "soak":
            return waves(numbers)
        if part == "closing":
            return [numbers]
        size = max(1, len(self.numbers["soak"]) // GROUPS)
        settling = max(numbers.start, numbers.stop - SETTLING_WAVES * size)
        cuts = [numbers.start, *range(settling, numbers.stop, size), numbers.stop]
        return [range(*pair) for pair in pairwise(cuts) if pair[0] < pair[1]]

    def _idle_metrics(self) -> dict[str, float]:
        """The metrics once nothing is under way: who has gone away is noticed a moment later."""
        deadline = time.monotonic() + 10
        while any((found := self._server.metrics())[name] for name in _GAUGES) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def _print_footprints(self, warm_up: int) -> None:
        print(f"\nprocesses, after {warm_up:,} requests to warm up")
        requests = [number for number, _ in self._samples]
        for name in self._samples[0][1]:
            held = [footprints[name] for _, footprints in self._samples]
            slope = fit(requests, [footprint.nbytes for footprint in held])
            megabytes = " to ".join(f"{held[index].nbytes / 1e6:.1f}" for index in (0, -1))
            self._report(f"{name:34} {slope}; {megabytes} MB", slope.bytes_per_request < MOST_GROWTH)
            now = self._server.footprints()[name]
            print(f"{'':34} {now.descriptors} descriptors and {now.threads} threads are open when all is done")

    def _report(self, line: str, good: bool) -> None:
        print(line if good else f"{line}   <- WRONG", flush=True)
        if not good:
            self.failures.append(line)


def waves(numbers: range) -> list[range]:
    """GROUPS parts of about the same size."""
    ends = [numbers.start + len(numbers) * wave // GROUPS for wave in range(GROUPS + 1)]
    return [range(*pair) for pair in pairwise(ends)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="as for fathom serve; tiny: random weights, made now")
    parser.add_argument("--requests", type=int, default=5000, help="after the warm-up")
    parser.add_argument("--warm-up", type=int, help="requests of the warm-up; a fifth as many if left out")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options, flags = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        path = str(tiny_model(folder)) if options.model == TINY else options.model
        server = start_server(options.model, path, folder, flags)
        soak = Soak(server, options.requests, options.concurrency, options.seed, options.warm_up)
        try:
            soak.run()
        finally:
            left = server.end()
    print("\nafter SIGTERM: exit code 0, nothing is left" if not left else f"\nafter SIGTERM: {left}   <- WRONG")
    sys.exit(1 if soak.failures or left else 0)


def start_server(name: str, path: str, folder: Path, flags: list[str]) -> ServedModel:
    """A server with little room. name: of --model, which says how much; flags: more of them."""
    return ServedModel(
        path,
        folder,
        f"--kv-cache-memory-bytes={KV_CACHE_BYTES.get(name, KV_CACHE_BYTES_ELSE)}",
        f"--max-model-len={CONTEXT}",
        f"--max-body-bytes={MAX_BODY_BYTES}",
        f"--chat-template={CHAT_TEMPLATE}",
        "--max-num-seqs=16",
        "--scheduling-policy=priority",
        *flags,
    )


if __name__ == "__main__":
    main()
