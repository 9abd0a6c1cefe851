"""Servers side by side: what is kept of a round, what counts, and the arithmetic of the table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers.environments import ContenderError
from benchmarks.peers.online import BEGIN, END, LOADS, WORKS, OnlineRace, ask
from benchmarks.peers.online_results import OFFLINE, OVERHEAD, OnlineRecord, OnlineResults, markdown
from benchmarks.peers.ratios import OURS
from benchmarks.peers.results import QUALIFYING, REPOSITORY
from benchmarks.peers.works import SMOLLM2, Requests, Work
from tests.server.plain_server import PlainServer

SMALL = Work("serve-2", "2 under way", SMOLLM2, Requests(5, (3, 3), (4, 4)))


@pytest.fixture
def server() -> Iterator[PlainServer]:
    started = PlainServer()
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
    assert markdown(OnlineResults(tmp_path), {"serve-1": "1 under way", "serve-8": "8"}, "B").splitlines() == [
        "| load | server | tokens/s | TTFT p50 / p99, ms | TPOT p50 / p99, ms | Fathom / it |",
        "|---|---|---|---|---|---|",
        "| 1 under way | Fathom | 610 | 6.0 / 10.9 | 2.0 / 2.0 |  |",
        "| 1 under way | B [y] | 155 | 6.0 / 10.9 | 2.0 / 2.0 | 3.00 |",
        "",
        "Fathom's server reaches 99.0 % of the tokens/s of its engine offline.",
    ]
    page = (REPOSITORY / "docs" / "performance.md").read_text()
    assert page.index(BEGIN) < page.index(END)
