"""Servers side by side: `fathom serve` and llama-server under the same load, from the client of `fathom bench serve`.

    python -m benchmarks.peers.online                     # about a quarter of an hour; llama.cpp is built if need be
    python -m benchmarks.peers.online --only serve-8 overhead --pairs 3
    python -m benchmarks.peers.online --docs              # puts the table into docs/

serve-1, serve-8, serve-32   so many requests under way; both servers loaded, in turns, the order turning each round
overhead                     Fathom's server against its engine offline, with the same requests

The qualifying round of each work chooses llama.cpp's format and warms up; it counts for nothing else. The client runs
on the same cores as the server that it measures. Results are kept as they come; the same command goes on with them.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import uvloop

from benchmarks.peers.environments import ContenderError
from benchmarks.peers.fathom import Fathom
from benchmarks.peers.llama_cpp import LlamaCpp, LlamaServer, model_file
from benchmarks.peers.online_results import OFFLINE, OVERHEAD, OnlineRecord, OnlineResults, markdown
from benchmarks.peers.ratios import OURS
from benchmarks.peers.report import with_table
from benchmarks.peers.results import QUALIFYING, REPOSITORY, default_run
from benchmarks.peers.works import SMOLLM2, Requests, Work
from fathom.entrypoints.cli.bench.latencies import values_of
from fathom.entrypoints.cli.bench.load import COMPLETIONS, Answer, Client, Pace
from fathom.entrypoints.cli.bench.own_server import own_server
from fathom.entrypoints.cli.bench.workload import Workload
from fathom.entrypoints.cli.openai_client import Remote
from fathom.hardware import detect_hardware
from fathom.weights.catalogue import CATALOGUE
from fathom.weights.download import pull

BEGIN = "<!-- online: begin (made by python -m benchmarks.peers.online --docs) -->"
END = "<!-- online: end -->"
OUR_FORMAT = "default"
Measure = Callable[[int], tuple[float, list[Answer]]]
"""Seconds and answers of a round, by its number."""


def _work(name: str, title: str, count: int) -> Work:
    return Work(name, title, SMOLLM2, Requests(count, (128, 128), (64, 64)))


LOADS = {
    1: _work("serve-1", "1 under way", 8),
    8: _work("serve-8", "8 under way", 32),
    32: _work("serve-32", "32 under way", 96),
}
"""By the number of requests under way; so many a round that it is steady, and short enough for several rounds."""
ALL_AT_ONCE = _work(OVERHEAD, "64 at once", 64)
WORKS = [*LOADS.values(), ALL_AT_ONCE]


class OnlineRace:
    """Fathom's server, at `url` with the GGUF file `model`, against others; what was measured is not done again."""

    def __init__(self, results: OnlineResults, url: str, model: Path, threads: int, pairs: int, logs: Path) -> None:
        self._results = results
        self._url, self._model = url, model
        self._threads, self._pairs, self._logs = threads, pairs, logs

    def servers(self, work: Work, concurrency: int) -> None:
        """Fathom's and llama.cpp's in its best format."""
        ours = ask(self._url, str(self._model), work, concurrency)
        self._measure(work, OURS, OUR_FORMAT, QUALIFYING, ours)
        rival = LlamaCpp()
        for format_name in rival.formats(work):
            if not self._results.has(work.name, rival.name, format_name, QUALIFYING):
                with self._llama_server(work, concurrency, format_name) as server:
                    theirs = ask(server.url, work.model, work, concurrency)
                    self._measure(work, rival.name, format_name, QUALIFYING, theirs)
        best = self._results.best_format(work.name, rival.name)
        assert best is not None, "every format has been measured"
        with self._llama_server(work, concurrency, best) as server:
            theirs = ask(server.url, work.model, work, concurrency)
            theirs(QUALIFYING)  # this process is not warm yet
            self._rounds(work, {(OURS, OUR_FORMAT): ours, (rival.name, best): theirs})

    def overhead(self, work: Work) -> None:
        """Fathom's server and the engine behind LLM, all requests at once."""
        offline = Fathom().open(self._model, OUR_FORMAT, self._threads, self._logs / "fathom.log")
        try:
            turns: dict[tuple[str, str], Measure] = {
                (OURS, OUR_FORMAT): ask(self._url, str(self._model), work, None),
                (OFFLINE, OUR_FORMAT): lambda number: (offline.measure(work, number), []),
            }
            for (name, format_name), measure in turns.items():
                self._measure(work, name, format_name, QUALIFYING, measure)
            self._rounds(work, turns)
        finally:
            offline.close()

    def _rounds(self, work: Work, turns: Mapping[tuple[str, str], Measure]) -> None:
        for number in range(self._pairs):
            for name, format_name in list(turns)[:: 1 if number % 2 == 0 else -1]:
                self._measure(work, name, format_name, number, turns[name, format_name])

    def _measure(self, work: Work, name: str, format_name: str, number: int, measure: Measure) -> None:
        if self._results.has(work.name, name, format_name, number):
            return
        seconds, answers = measure(number)
        rate = sum(work.prompts(number).output_lens) / seconds
        ttft, tpot = values_of("ttft", answers), values_of("tpot", answers)
        self._results.add(OnlineRecord(work.name, name, format_name, number, rate, ttft, tpot))
        label = "qualifying" if number == QUALIFYING else f"round {number}"
        print(f"  {work.name:10} {label:10} {name:10} {format_name:10} {rate:9.1f} tok/s", flush=True)

    def _llama_server(self, work: Work, slots: int, format_name: str) -> LlamaServer:
        assert isinstance(work.task, Requests)
        file, log = model_file(self._model, format_name), self._logs / "llama-server.log"
        return LlamaServer(file, slots, work.task.most_tokens, self._threads, log)


def ask(url: str, model: str, work: Work, concurrency: int | None) -> Measure:
    """What measures a server: the work's requests of a round, at most so many under way; all must succeed."""

    async def load(number: int) -> tuple[float, list[Answer]]:
        prompts = work.prompts(number)
        client = Client(Remote(url, model, {"Content-Type": "application/json"}), COMPLETIONS)
        try:
            pace = Pace(concurrency=concurrency)
            seconds, answers = await client.run(Workload(prompts.token_ids, prompts.output_lens, {}), pace)
        finally:
            await client.close()
        for answer, wanted in zip(answers, prompts.output_lens, strict=True):
            if answer.error is not None or answer.num_output != wanted:
                raise ContenderError(answer.error or f"an answer of {answer.num_output} tokens instead of {wanted}")
        return seconds, answers

    return lambda number: uvloop.run(load(number))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.online",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [work.name for work in WORKS]
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="WORK", help=f"of {', '.join(names)}"
    )
    parser.add_argument("--pairs", type=int, default=5, help="rounds of each work (%(default)s)")
    parser.add_argument("--threads", type=int, default=detect_hardware().cores, help="of everyone (%(default)s)")
    parser.add_argument("--run", type=Path, default=default_run(), help="folder of the results (%(default)s)")
    parser.add_argument("--docs", action="store_true", help="write the table to docs/performance.md")
    return parser.parse_args()


def main() -> None:
    options = parse()
    os.environ.setdefault("FATHOM_LOGGING_LEVEL", "WARNING")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are ended too
    results, model = OnlineResults(options.run), pull(CATALOGUE[SMOLLM2])
    engine = {"model": str(model), "num_threads": options.threads, "show_progress": False}
    try:
        LlamaCpp().install()
        with own_server(engine) as url:
            race = OnlineRace(results, url, model, options.threads, options.pairs, options.run)
            for concurrency, work in LOADS.items():
                if work.name in options.only:
                    race.servers(work, concurrency)
            if OVERHEAD in options.only:
                race.overhead(ALL_AT_ONCE)
    except ContenderError as error:
        sys.exit(str(error))
    found = markdown(results, {work.name: work.title for work in LOADS.values()}, LlamaCpp.name)
    print("", found, sep="\n")
    if options.docs:
        page = REPOSITORY / "docs" / "performance.md"
        page.write_text(with_table(page.read_text(), found, BEGIN, END))


if __name__ == "__main__":
    main()
