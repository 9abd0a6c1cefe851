"""The race: Fathom and its rivals take turns at the same work, round after round.

    qualifying   everyone once, in every format; each rival goes on in its best. Warms up, and is dropped.
    round 0      Fathom, A, B, ...
    round 1      ..., B, A, Fathom          the other way round, so that a drift of the machine cancels
    ...

A ratio is made of two figures of one round. Engines stay loaded between rounds, and wait while another works.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import psutil

from benchmarks.peers.contender import Contender, Session, formats_to_try, rate
from benchmarks.peers.environments import ContenderError
from benchmarks.peers.ratios import OURS, best_format
from benchmarks.peers.results import Record, Results
from benchmarks.peers.rounds import QUALIFYING, rounds_left
from benchmarks.peers.works import WORKS, Work

BUSY_PERCENT = 10
Entry = tuple[Contender, str]


class Race:
    """Contenders with the sessions that they have open.

    Args:
        model_file: finds the GGUF file of a model's name.
        formats: contenders that have one of these do not try others.
        deadline: of time.monotonic(); no round begins later.
    """

    def __init__(
        self,
        contenders: Sequence[Contender],
        results: Results,
        threads: int,
        model_file: Callable[[str], Path],
        formats: Sequence[str] = (),
        deadline: float = float("inf"),
    ) -> None:
        self._contenders = contenders
        self._results = results
        self._threads = threads
        self._model_file = model_file
        self._formats = formats
        self._deadline = deadline
        self._sessions: dict[tuple[str, str], Session] = {}
        self._model = ""

    def run(self, work: Work, pairs: int) -> None:
        """The rounds of a work that are not in the results yet, as far as the deadline allows."""
        if self._is_late():
            return
        if work.model != self._model:
            self.close()
            self._model = work.model
        rivals = [c for c in self._contenders if c.name == OURS or work.rivals is None or c.name in work.rivals]
        entries = self._qualify(work, rivals)
        field = {(contender.name, name) for contender, name in entries}
        for number in rounds_left(self._results.done(work.name), field, min(pairs, work.most_pairs or pairs)):
            if self._is_late():
                return
            self._run_round(work, work, number, entries if number % 2 == 0 else entries[::-1])

    def close(self) -> None:
        """End all engines."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def __enter__(self) -> Race:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def _qualify(self, work: Work, contenders: Sequence[Contender]) -> list[Entry]:
        """Every contender that can do the work, in its best format."""
        decided_in = work.qualifies_in or work.name
        entries = []
        for contender in contenders:
            best = best_format(self._results.of(decided_in), contender.name)
            if best is None:
                names = formats_to_try(contender, work, self._formats, self._chosen_before(contender, work))
                self._run_round(work, work.for_qualifying(), QUALIFYING, [(contender, name) for name in names])
                best = best_format(self._results.of(work.name), contender.name)
            self._close_all_but(contender, best)
            if best is not None:
                entries.append((contender, best))
        return entries

    def _chosen_before(self, contender: Contender, work: Work) -> str | None:
        """A contender's best format in the first work with the same model that it has qualified in."""
        found = (best_format(self._results.of(w.name), contender.name) for w in WORKS if w.model == work.model)
        return next((name for name in found if name is not None), None)

    def _run_round(self, work: Work, run_as: Work, number: int, entries: Sequence[Entry]) -> None:
        busy = psutil.cpu_percent(interval=1)
        if busy > BUSY_PERCENT:
            print(f"  the machine is busy ({busy:.0f} % of it) before the race touches it: figures will be unsteady")
        for contender, format_name in entries:
            try:
                self._measure(work, run_as, number, contender, format_name, busy)
            except ContenderError as error:
                print(f"  {work.name}: {contender.name} {format_name}: {error}")
                self._close_session(contender.name, format_name)

    def _measure(
        self, work: Work, run_as: Work, number: int, contender: Contender, format_name: str, busy: float
    ) -> None:
        session = self._session(contender, format_name)
        seconds = session.measure(run_as, number)
        tokens_a_second = rate(run_as.task, run_as.prompts(number), seconds)
        at = datetime.now().isoformat(timespec="seconds")
        self._results.add(Record(work.name, contender.name, format_name, number, tokens_a_second, seconds, busy, at))
        label = "qualifying" if number == QUALIFYING else f"round {number}"
        print(
            f"  {work.name:18} {label:10} {contender.name:10} {format_name:10} {tokens_a_second:9.1f} tok/s", flush=True
        )

    def _session(self, contender: Contender, format_name: str) -> Session:
        key = (contender.name, format_name)
        if key not in self._sessions:
            log = self._results.folder / f"{contender.name}.log"
            start = time.perf_counter()
            self._sessions[key] = contender.open(self._model_file(self._model), format_name, self._threads, log)
            print(f"  {contender.name} {format_name} is ready after {time.perf_counter() - start:.1f} s", flush=True)
        return self._sessions[key]

    def _close_session(self, contender: str, format_name: str) -> None:
        session = self._sessions.pop((contender, format_name), None)
        if session is not None:
            session.close()

    def _close_all_but(self, contender: Contender, format_name: str | None) -> None:
        for name, opened in list(self._sessions):
            if name == contender.name and opened != format_name:
                self._close_session(name, opened)
