"""Servers side by side: what is kept of a round, what counts, and the arithmetic of the table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from benchmarks.peers.contender import Session
from benchmarks.peers.environments import ContenderError
from benchmarks.peers.online import BEGIN, END, LOADS, WORKS, OnlineRace, ask
from benchmarks.peers.online_results import OFFLINE, OVERHEAD, OnlineRecord, OnlineResults, markdown
from benchmarks.peers.ratios import OURS
from benchmarks.peers.results import REPOSITORY
from benchmarks.peers.rounds import QUALIFYING
from benchmarks.peers.servers import RivalServer
from benchmarks.peers.works import SMOLLM2, Requests, Work
from tests.client.processes import PATIENCE_S, comes_true, is_gone
from tests.server.plain_server import PlainServer

SMALL = Work("serve-2", "2 under way", SMOLLM2, Requests(5, (3, 3), (4, 4)))


@pytest.fixture
def server() -> Iterator[PlainServer]:
    started = PlainServer(company=2, last=5)
    yield started
    started.close()


def test_loads() -> None:
    assert [work.name for work in WORKS] == ["serve-1", "serve-8", "serve-32", "overhead"]
    for concurrency, work in LOADS.items():
        assert isinstance(work.task, Requests)
        assert work.task.count >= 3 * concurrency
        assert work.prompts(0) != work.prompts(1)


def test_a_round_is_its_requests(server: PlainServer) -> None:
    seconds, answers = ask(server.url, "m", SMALL, 2)(7)
    assert seconds > 0
    assert [(answer.num_output, answer.error) for answer in answers] == [(4, None)] * 5
    assert sorted(body["prompt"] for body in server.bodies) == sorted(SMALL.prompts(7).token_ids)
    assert server.most_at_once == 2
    server.fails_every = 1
    with pytest.raises(ContenderError, match="500 broken"):
        ask(server.url, "m", SMALL, 2)(8)


def test_rounds_take_turns_and_go_on_where_they_stopped(tmp_path: Path) -> None:
    order: list[tuple[str, int]] = []

    def noted(name: str):
        return lambda number: (order.append((name, number)), (2.0, []))[1]

    for pairs in (1, 3):  # the second time, round 0 is there
        race = OnlineRace(OnlineResults(tmp_path), "", Path("model"), 1, pairs, tmp_path)
        race._rounds(SMALL, {(OURS, "default"): noted("a"), ("B", "x"): noted("b")})
    assert order == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    assert OnlineResults(tmp_path).has("serve-2", "B", "x", 2)


class Rival:
    """One whose servers are told from each other by what they log."""

    name = "B"
    slow_to_start = False
    server_per_load = True

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def install(self) -> str:
        return "1"

    def formats(self, work: Work) -> list[str]:
        return ["x", "y"]

    def open(self, model: Path, format_name: str, threads: int, log: Path) -> Session:
        raise AssertionError("only served")

    def serve(
        self, model: Path, format_name: str, work: Work, concurrency: int, threads: int, log: Path
    ) -> PlainServer:
        self._log.append(f"start {format_name} for {work.name}")
        return LoggedServer(self._log)


class LoggedServer(PlainServer):
    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self._log = log

    def close(self) -> None:
        super().close()
        self._log.append(f"end after {len(self.bodies)}")


OTHER = replace(SMALL, name="serve-3")


@pytest.mark.parametrize("alike", [True, False])
def test_one_rival_at_a_time(server: PlainServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alike: bool) -> None:
    monkeypatch.setitem(LOADS, 1, SMALL)  # where the format is looked up
    log: list[str] = []
    rival = Rival(log)
    rival.slow_to_start, rival.server_per_load = alike, not alike
    with OnlineRace(OnlineResults(tmp_path), server.url, tmp_path / "model", 1, 2, tmp_path) as race:
        for work in (SMALL, OTHER):
            race.servers(rival, work, 2)
    chosen = OnlineResults(tmp_path).best_format(SMALL.name, "B")
    starts = [line for line in log if line.startswith("start")]
    if alike:  # it stays for both works, in the format chosen in the first
        assert len(starts) == (2 if chosen == "y" else 3)
        assert OnlineResults(tmp_path).best_format(OTHER.name, "B") == chosen
    else:
        assert starts[:2] == ["start x for serve-2", "start y for serve-2"]
        assert {"start x for serve-3", "start y for serve-3"} <= set(starts)
    assert [line.split()[0] for line in log] == ["start", "end"] * len(starts)
    for work in (SMALL, OTHER):
        assert [len(OnlineResults(tmp_path).counted(work.name, name)) for name in (OURS, "B")] == [2, 2]


SCRIPT = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
        self.wfile.write(b"{}")
http.server.HTTPServer((sys.argv[2], int(sys.argv[4])), Handler).serve_forever()
"""


def test_a_rivals_server_ends_with_its_children(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with RivalServer([sys.executable, "-c", SCRIPT], log, start_seconds=PATIENCE_S) as server:
        assert server.ask("GET", "/health") == b"{}"
        with pytest.raises(ContenderError, match="/other was answered with 404"):
            server.ask("GET", "/other")
        child = psutil.Process(int(log.read_text().split()[0]))
        assert not is_gone(child)
    assert comes_true(lambda: is_gone(child))


def test_a_server_that_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ContenderError, match="the server did not start; see "):
        RivalServer([sys.executable, "-c", "raise SystemExit(1)"], tmp_path / "log", start_seconds=PATIENCE_S)


def test_the_table(tmp_path: Path) -> None:
    results = OnlineResults(tmp_path)
    for name, format_name, number, rate in (
        (OURS, "default", QUALIFYING, 1.0),
        ("B", "x", QUALIFYING, 5.0),
        ("B", "y", QUALIFYING, 6.0),
        (OURS, "default", 0, 20.0),
        ("B", "y", 0, 10.0),
        (OURS, "default", 1, 1200.0),
        ("B", "y", 1, 300.0),
    ):
        results.add(OnlineRecord("serve-1", name, format_name, number, rate, ttft=[10.0 * number + 1], tpot=[2.0]))
    results.add(OnlineRecord(OVERHEAD, OURS, "default", QUALIFYING, 1.0))
    results.add(OnlineRecord(OVERHEAD, OFFLINE, "default", QUALIFYING, 1.0))
    results.add(OnlineRecord(OVERHEAD, OURS, "default", 0, 99.0))
    results.add(OnlineRecord(OVERHEAD, OFFLINE, "default", 0, 100.0))
    assert markdown(OnlineResults(tmp_path), {"serve-1": "1 under way", "serve-8": "8"}, ["B", "C"]).splitlines() == [
        "| load | server | tokens/s | TTFT p50 / p99, ms | TPOT p50 / p99, ms | Fathom / it |",
        "|---|---|---|---|---|---|",
        "| 1 under way | Fathom | 610 | 6.0 / 10.9 | 2.0 / 2.0 |  |",
        "| 1 under way | B [y] | 155 | 6.0 / 10.9 | 2.0 / 2.0 | 3.00 |",
        "",
        "Fathom's server reaches 99.0 % of the tokens/s of its engine offline.",
    ]
    page = (REPOSITORY / "docs" / "performance.md").read_text()
    assert page.index(BEGIN) < page.index(END)
