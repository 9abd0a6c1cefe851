"""Servers side by side: `fathom serve` and others' under the same load, from the client of `fathom bench serve`.

    python -m benchmarks.peers.online                     # about a quarter of an hour; llama.cpp is built if need be
    python -m benchmarks.peers.online --rivals llama.cpp vLLM
    python -m benchmarks.peers.online --only serve-8 overhead --pairs 3
    python -m benchmarks.peers.online --docs              # puts the table into docs/

serve-1, serve-8, serve-32   so many requests under way; Fathom's and a rival's server in turns, turning each round
overhead                     Fathom's server against its engine offline, with the same requests

Fathom's server meets one rival after the other, each in rounds of its own; only one of the two works at a time, and the
rivals' never run at once. The qualifying round of each work chooses a rival's format and warms up; it counts for
nothing else. The client runs on the same cores as the server that it measures. Results are kept as they come; the same
command goes on with them.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import uvloop

from benchmarks.peers.contender import Served, formats_to_try
from benchmarks.peers.environments import ContenderError
from benchmarks.peers.fathom import Fathom
from benchmarks.peers.llama_cpp import LlamaCpp
from benchmarks.peers.online_results import OFFLINE, OVERHEAD, OnlineRecord, OnlineResults, markdown
from benchmarks.peers.plain_client import ask_all
from benchmarks.peers.ratios import OURS
from benchmarks.peers.report import with_table
from benchmarks.peers.results import REPOSITORY, default_run
from benchmarks.peers.rounds import QUALIFYING, Who, rounds_left
from benchmarks.peers.servers import RivalServer
from benchmarks.peers.vllm import VLLM
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
RIVALS: dict[str, type[Served]] = {kind.name: kind for kind in (LlamaCpp, VLLM)}
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
    """Fathom's server, at `url` with the GGUF file `model`, against others; what was measured is not done again.

    Of the rivals' servers one runs at a time; it stays until another is needed. formats, deadline: as in Race.
    """

    def __init__(
        self,
        results: OnlineResults,
        url: str,
        model: Path,
        threads: int,
        pairs: int,
        logs: Path,
        formats: Sequence[str] = (),
        deadline: float = float("inf"),
    ) -> None:
        self._results = results
        self._url, self._model = url, model
        self._threads, self._pairs, self._logs = threads, pairs, logs
        self._formats = formats
        self._deadline = deadline
        self._server: RivalServer | None = None
        self._serving: object = None

    def servers(self, rival: Served, work: Work, concurrency: int) -> None:
        """Fathom's and a rival's in its best format."""
        ours = ask(self._url, str(self._model), work, concurrency)
        self._measure(work, OURS, OUR_FORMAT, QUALIFYING, ours)
        for format_name in formats_to_try(rival, work, self._formats, self._chosen_before(rival)):
            theirs = self._asked(rival, format_name, work, concurrency)
            self._measure(work, rival.name, format_name, QUALIFYING, theirs)
        best = self._results.best_format(work.name, rival.name)
        assert best is not None, "every format has been measured"
        theirs = self._asked(rival, best, work, concurrency)
        self._rounds(work, {(OURS, OUR_FORMAT): ours, (rival.name, best): theirs})

    def close(self) -> None:
        """End the rival's server."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def __enter__(self) -> OnlineRace:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def overhead(self, work: Work, url: str) -> None:
        """Fathom's server at `url`, streaming, and the engine behind LLM, all requests at once."""
        offline = Fathom().open(self._model, OUR_FORMAT, self._threads, self._logs / "fathom.log")
        try:
            turns: dict[Who, Measure] = {
                (OURS, OUR_FORMAT): lambda number: (
                    uvloop.run(ask_all(url, str(self._model), work.prompts(number))),
                    [],
                ),
                (OFFLINE, OUR_FORMAT): lambda number: (offline.measure(work, number), []),
            }
            for (name, format_name), measure in turns.items():
                self._measure(work, name, format_name, QUALIFYING, measure)
            self._rounds(work, turns)
        finally:
            offline.close()

    def _rounds(self, work: Work, turns: Mapping[Who, Measure]) -> None:
        for number in rounds_left(self._results.done(work.name), set(turns), self._pairs):
            if time.monotonic() > self._deadline:
                return
            for name, format_name in list(turns)[:: 1 if number % 2 == 0 else -1]:
                self._measure(work, name, format_name, number, turns[name, format_name])

    def _measure(self, work: Work, name: str, format_name: str, number: int, measure: Measure) -> None:
        if self._results.has(work.name, name, format_name, number):
            return
        seconds, answers = measure(number)
        rate = sum(work.prompts(number).output_lens) / seconds
        ttft, tpot = values_of("ttft", answers), values_of("tpot", answers)
        at = datetime.now().isoformat(timespec="seconds")
        self._results.add(OnlineRecord(work.name, name, format_name, number, rate, ttft, tpot, at))
        label = "qualifying" if number == QUALIFYING else f"round {number}"
        print(f"  {work.name:10} {label:10} {name:10} {format_name:10} {rate:9.1f} tok/s", flush=True)

    def _asked(self, rival: Served, format_name: str, work: Work, concurrency: int) -> Measure:
        """What measures the rival's server, which is started and warmed up when it is first needed."""

        def measure(number: int) -> tuple[float, list[Answer]]:
            wanted = (rival.name, format_name, work.name if rival.server_per_load else None)
            if self._server is None or self._serving != wanted:
                self.close()
                log = self._logs / f"{rival.name}-server.log"
                start = time.perf_counter()
                self._server = rival.serve(self._model, format_name, work, concurrency, self._threads, log)
                print(f"  {rival.name} {format_name} is ready after {time.perf_counter() - start:.1f} s", flush=True)
                self._serving = wanted
                if number != QUALIFYING:
                    ask(self._server.url, work.model, work, concurrency)(QUALIFYING)
            return ask(self._server.url, work.model, work, concurrency)(number)

        return measure

    def _chosen_before(self, rival: Served) -> str | None:
        """The rival's best format at the first load that it has qualified in."""
        found = (self._results.best_format(work.name, rival.name) for work in LOADS.values())
        return next((name for name in found if name is not None), None)


def ask(url: str, model: str, work: Work, concurrency: int) -> Measure:
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
    parser.add_argument(
        "--rivals", nargs="+", choices=list(RIVALS), default=[LlamaCpp.name], help="%(choices)s (%(default)s)"
    )
    parser.add_argument("--formats", nargs="+", default=[], help="the rivals' formats, if not all are to be tried")
    parser.add_argument("--pairs", type=int, default=5, help="rounds of each work (%(default)s)")
    parser.add_argument("--threads", type=int, default=detect_hardware().cores, help="of everyone (%(default)s)")
    parser.add_argument("--run", type=Path, default=default_run(), help="folder of the results (%(default)s)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no round later than that")
    parser.add_argument("--docs", action="store_true", help="write the table to docs/performance.md")
    return parser.parse_args()


def main() -> None:
    options = parse()
    os.environ.setdefault("FATHOM_LOGGING_LEVEL", "WARNING")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are ended too
    results, model = OnlineResults(options.run), pull(CATALOGUE[SMOLLM2])
    engine = {"model": str(model), "num_threads": options.threads, "show_progress": False}
    rivals = [RIVALS[name]() for name in options.rivals]
    deadline = time.monotonic() + 60 * options.minutes
    try:
        for rival in rivals:
            rival.install()
        with (
            own_server(engine) as url,
            OnlineRace(
                results, url, model, options.threads, options.pairs, options.run, options.formats, deadline
            ) as race,
        ):
            for rival in rivals:
                for concurrency, work in LOADS.items():
                    if work.name in options.only:
                        race.servers(rival, work, concurrency)
            race.close()  # what comes now is about Fathom alone
            if OVERHEAD in options.only:
                with own_server(engine | {"itl_target_ms": 0}) as url_untimed:  # sizes its steps as LLM does
                    race.overhead(ALL_AT_ONCE, url_untimed)
    except ContenderError as error:
        sys.exit(str(error))
    found = markdown(results, {work.name: work.title for work in LOADS.values()}, list(RIVALS))
    print("", found, sep="\n")
    if options.docs:
        page = REPOSITORY / "docs" / "performance.md"
        page.write_text(with_table(page.read_text(), found, BEGIN, END))


if __name__ == "__main__":
    main()
