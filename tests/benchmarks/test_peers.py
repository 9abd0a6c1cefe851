"""The race against other engines: who runs when, what is kept, and the arithmetic of what is claimed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from benchmarks.peers.contender import Contender, ScriptSession, formats_to_try, rate
from benchmarks.peers.environments import INSIDE, ContenderError
from benchmarks.peers.fathom import Fathom
from benchmarks.peers.levels import AVX2, LEVELS, NATIVE, environment
from benchmarks.peers.llama_cpp import LEVEL_FLAGS
from benchmarks.peers.plots import draw
from benchmarks.peers.race import Race
from benchmarks.peers.ratios import Spread, Standing, best_format, standings
from benchmarks.peers.report import BEGIN, END, MARKS, markdown, ratio_lines, with_table, write_summary
from benchmarks.peers.results import REPOSITORY, Record, Results, default_run
from benchmarks.peers.rounds import QUALIFYING, rounds_left
from benchmarks.peers.works import CONCURRENCY_PLOT, CONTEXT_PLOT, WORKS, Decode, Prefill, Prompts, Requests, Work

DECODE = Work("decode-1", "decode", "smollm2-135m", Decode(1, 4, 10))
MACHINE = {
    "date": "2026-01-02",
    "processor": "a processor",
    "level": NATIVE,
    "threads": 2,
    "versions": {"Fathom": "1", "Rival": "2"},
}


def record(contender: str, format_name: str, number: int, tokens_a_second: float) -> Record:
    return Record("decode-1", contender, format_name, number, tokens_a_second, 1.0, 0.0, "")


# ---------------------------------------------------------------- works


def test_prompts_depend_on_work_and_round_alone() -> None:
    work = next(work for work in WORKS if work.name == "mixed-64")
    prompts = work.prompts(3)
    assert prompts == work.prompts(3)
    assert prompts.token_ids != work.prompts(4).token_ids
    assert len(prompts.token_ids) == len(prompts.output_lens) == 64
    assert all(32 <= len(ids) <= 256 for ids in prompts.token_ids)
    assert all(32 <= length <= 256 for length in prompts.output_lens)
    assert all(100 <= token <= 40_000 for ids in prompts.token_ids for token in ids)
    decode = next(work for work in WORKS if work.name == "decode-8")
    assert decode.prompts(0) == decode.prompts(1)
    assert len(work.for_qualifying().prompts(QUALIFYING).token_ids) == 16


def test_a_common_beginning() -> None:
    prompts = next(work for work in WORKS if work.name == "prefix-16").prompts(0)
    assert len({tuple(ids[:1000]) for ids in prompts.token_ids}) == 1
    assert len({tuple(ids[1000:]) for ids in prompts.token_ids}) == 16
    assert {len(ids) for ids in prompts.token_ids} == {1032}


def test_works_and_plots_agree() -> None:
    names = [work.name for work in WORKS]
    assert len(set(names)) == len(names)
    assert {work.qualifies_in for work in WORKS} <= {None, *names}
    assert {*CONCURRENCY_PLOT.values(), *CONTEXT_PLOT.values()} <= set(names)


def test_rates() -> None:
    prompts = Prompts([[1] * 30, [1] * 20], [7, 3])
    assert rate(Requests(2, (1, 30), (1, 7)), prompts, 2.0) == 5.0
    assert rate(Decode(2, 25, 5), prompts, 2.0) == 5.0
    assert rate(Prefill(50), prompts, 2.0) == 25.0


# ---------------------------------------------------------------- ratios and tables


def test_ratios_are_of_the_same_round() -> None:
    records = [
        record("Fathom", "default", QUALIFYING, 1.0),
        record("Rival", "Q8", QUALIFYING, 40.0),
        record("Rival", "Q4", QUALIFYING, 50.0),
        *(record("Fathom", "default", number, value) for number, value in enumerate([100.0, 90.0, 120.0])),
        *(record("Rival", "Q4", number, value) for number, value in enumerate([50.0, 30.0, 80.0, 70.0])),
        record("Slow", "f32", 2, 10.0),
        record("Absent", "f32", 3, 10.0),
    ]
    assert best_format(records, "Rival") == "Q4"
    assert best_format(records, "Slow") is None
    assert standings(records) == [
        Standing("Fathom", "default", Spread(100.0, 90.0, 120.0), None, 3),
        Standing("Rival", "Q4", Spread(60.0, 30.0, 80.0), Spread(2.0, 1.5, 3.0), 3),
        Standing("Slow", "f32", Spread(10.0, 10.0, 10.0), Spread(12.0, 12.0, 12.0), 1),
    ]
    assert standings(records[:3]) == []


def test_the_report(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.write_machine(MACHINE)
    for number, (ours, theirs) in enumerate([(1500.0, 100.0), (300.0, 50.0)]):
        results.add(record("Fathom", "default", number, ours))
        results.add(record("Rival", "Q4", number, theirs))
    assert markdown(results).splitlines() == [
        "2026-01-02; a processor, 2 threads; Fathom 1, Rival 2. Tokens a second: the median of all rounds, with the "
        "least and the most; in brackets the format, if there was a choice.",
        "",
        "| work | Fathom | Rival | Fathom / best rival | pairs |",
        "|---|---|---|---|---|",
        "| decode, 1 sequence of 128 after 128 | 900 (300-1,500) | 75.0 (50.0-100) [Q4] | 10.50 (6.00-15.00) | 2 |",
    ]
    assert ratio_lines(results) == ["decode-1           Fathom / Rival (Q4): 10.50 (6.00-15.00), 2 pairs"]
    assert '"ratio": {' in write_summary(results).read_text()


def test_the_table_finds_its_place() -> None:
    page = f"above\n{BEGIN}\nold\n{END}\nbelow\n"
    assert with_table(page, "new") == f"above\n{BEGIN}\nnew\n{END}\nbelow\n"
    docs = (REPOSITORY / "docs" / "performance.md").read_text()
    assert all(with_table(docs, "new", *MARKS[level]) != docs for level in LEVELS)
    with pytest.raises(SystemExit, match="the page has no"):
        with_table("nothing", "new")


def test_plots(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.write_machine(MACHINE)
    assert draw(results, tmp_path) == []
    for work in CONCURRENCY_PLOT.values():
        results.add(replace(record("Fathom", "default", 0, 5.0), work=work))
    throughput, context = draw(results, tmp_path)
    assert throughput.read_bytes()[:4] == context.read_bytes()[:4] == b"\x89PNG"


# ---------------------------------------------------------------- the race


class Scripted:
    """A contender whose seconds are given, by format."""

    slow_to_start = False

    def __init__(self, name: str, seconds: dict[str, float], log: list[str]) -> None:
        self.name = name
        self._seconds = seconds
        self._log = log

    def install(self) -> str:
        return "1"

    def formats(self, work: Work) -> list[str]:
        return list(self._seconds)

    def open(self, model: Path, format_name: str, threads: int, log: Path) -> ScriptedSession:
        self._log.append(f"open {self.name} {format_name}")
        return ScriptedSession(self.name, format_name, self._seconds[format_name], self._log)


class ScriptedSession:
    def __init__(self, name: str, format_name: str, seconds: float, log: list[str]) -> None:
        self._label, self._seconds, self._log = f"{name} {format_name}", seconds, log

    def measure(self, work: Work, round_number: int) -> float:
        self._log.append(f"{round_number} {self._label}")
        if self._seconds < 0:
            raise ContenderError("it fell over")
        return self._seconds

    def close(self) -> None:
        self._log.append(f"close {self._label}")


@pytest.fixture
def hold_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """hold_race(pairs, work, name={format: seconds}, ...): what happened, in order."""
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: 0.0)

    def run(pairs: int, work: Work = DECODE, **formats: dict[str, float]) -> list[str]:
        log: list[str] = []
        contenders: list[Contender] = [Scripted(name, seconds, log) for name, seconds in formats.items()]
        with Race(contenders, Results(tmp_path), 1, lambda name: tmp_path / name) as race:
            race.run(work, pairs)
        return log

    return run


def test_they_take_turns(hold_race: Callable[..., list[str]], tmp_path: Path) -> None:
    assert hold_race(2, Fathom={"x": 1.0}, Rival={"slow": 4.0, "fast": 2.0}) == [
        "open Fathom x",
        "-1 Fathom x",
        "open Rival slow",
        "-1 Rival slow",
        "open Rival fast",
        "-1 Rival fast",
        "close Rival slow",
        "0 Fathom x",
        "0 Rival fast",
        "1 Rival fast",
        "1 Fathom x",
        "close Fathom x",
        "close Rival fast",
    ]
    (ours, rival) = standings(Results(tmp_path).of("decode-1"))
    assert (ours.rate.median, rival.rate.median, rival.ratio) == (10.0, 5.0, Spread(2.0, 2.0, 2.0))


def test_a_run_goes_on_where_it_stopped(hold_race: Callable[..., list[str]]) -> None:
    field = {"Fathom": {"x": 1.0}, "Rival": {"slow": 4.0, "fast": 2.0}}
    hold_race(1, **field)
    assert hold_race(1, **field) == []
    assert [line for line in hold_race(2, **field) if line[0].isdigit()] == ["1 Rival fast", "1 Fathom x"]


def test_a_round_that_lacks_somebody_is_run_again(hold_race: Callable[..., list[str]], tmp_path: Path) -> None:
    field = {"Fathom": {"x": 1.0}, "Rival": {"y": 2.0}}
    hold_race(1, **field)
    lines = (tmp_path / "records.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "records.jsonl").write_text("".join(lines[:-1]))
    assert [line for line in hold_race(1, **field) if line[0].isdigit()] == ["0 Fathom x", "0 Rival y"]


def test_a_rival_that_falls_over_is_left_out(hold_race: Callable[..., list[str]]) -> None:
    log = hold_race(1, Fathom={"x": 1.0}, Rival={"y": -1.0})
    assert log == [
        "open Fathom x",
        "-1 Fathom x",
        "open Rival y",
        "-1 Rival y",
        "close Rival y",
        "0 Fathom x",
        "close Fathom x",
    ]


def test_a_work_may_leave_the_choice_to_another(hold_race: Callable[..., list[str]]) -> None:
    field = {"Fathom": {"x": 1.0}, "Rival": {"slow": 4.0, "fast": 2.0}}
    hold_race(1, **field)
    log = hold_race(1, replace(DECODE, name="context-1024", qualifies_in="decode-1"), **field)
    assert log[:4] == ["open Fathom x", "0 Fathom x", "open Rival fast", "0 Rival fast"]


def test_works_choose_their_rivals_and_rounds(hold_race: Callable[..., list[str]]) -> None:
    work = replace(DECODE, rivals=("Rival",), most_pairs=1)
    log = hold_race(5, work, Fathom={"x": 1.0}, Rival={"y": 2.0}, Other={"z": 2.0})
    assert [line for line in log if line[0].isdigit()] == ["0 Fathom x", "0 Rival y"]


def test_a_rival_that_joins_later_has_rounds_of_its_own(hold_race: Callable[..., list[str]], tmp_path: Path) -> None:
    hold_race(2, Fathom={"x": 1.0}, Rival={"y": 2.0})
    log = hold_race(1, Fathom={"x": 1.0}, Late={"z": 4.0})
    assert [line for line in log if line[0].isdigit()] == ["2 Fathom x", "2 Late z"]
    assert [(standing.contender, standing.pairs) for standing in standings(Results(tmp_path).of("decode-1"))] == [
        ("Fathom", 3),
        ("Rival", 2),
        ("Late", 1),
    ]


def test_rounds_left() -> None:
    both, ours, other = {("F", "x"), ("R", "y")}, (("F", "x"), 0), (("L", "z"), 1)
    assert rounds_left([], both, 2) == [0, 1]
    assert rounds_left([ours], both, 2) == [0, 1]
    assert rounds_left([ours, (("R", "y"), 0)], both, 2) == [1]
    assert rounds_left([ours, (("R", "y"), 0)], both, 1) == []
    assert rounds_left([ours, (("F", "x"), 1), other], both, 2) == [0, 2]
    assert rounds_left([(("F", "x"), QUALIFYING)], both, 1) == [0]


def test_formats_may_be_given_and_slow_ones_are_chosen_once(tmp_path: Path) -> None:
    rival = Scripted("Rival", {"a": 1.0, "b": 1.0}, [])
    assert formats_to_try(rival, DECODE, [], "b") == ["a", "b"]
    assert formats_to_try(rival, DECODE, ["b", "c"], None) == ["b"]
    assert formats_to_try(rival, DECODE, ["c"], None) == ["a", "b"]
    rival.slow_to_start = True
    assert formats_to_try(rival, DECODE, ["a"], "b") == ["b"]


def test_no_round_begins_late(tmp_path: Path) -> None:
    log: list[str] = []
    with Race([Scripted("Fathom", {"x": 1.0}, log)], Results(tmp_path), 1, lambda name: tmp_path, deadline=0.0) as race:
        race.run(DECODE, 5)
    assert log == []


# ---------------------------------------------------------------- everyone limited to the same instructions


def test_a_level_has_a_table_and_a_run_of_its_own(tmp_path: Path) -> None:
    assert default_run(AVX2).name == f"{default_run().name}-avx2"
    results = Results(tmp_path)
    results.write_machine(MACHINE | {"level": AVX2})
    assert markdown(results).startswith("2026-01-02; a processor, everyone limited to AVX2, 2 threads; Fathom 1")
    with pytest.raises(ContenderError, match="has figures of the level avx2; give another --run"):
        results.write_machine(MACHINE)


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FATHOM_CPU_LEVEL", raising=False)
    assert "FATHOM_CPU_LEVEL" not in environment(NATIVE)
    assert environment(AVX2).items() >= {("FATHOM_CPU_LEVEL", "avx2"), ("ONEDNN_MAX_CPU_ISA", "AVX2")}
    assert set(LEVEL_FLAGS) == set(LEVELS)
    assert {"-DGGML_NATIVE=OFF", "-DGGML_AVX2=ON", "-DGGML_AVX512_VNNI=OFF"} <= set(LEVEL_FLAGS[AVX2])
    assert Fathom(AVX2).formats(DECODE) == ["default"]


# ---------------------------------------------------------------- an engine behind a script

SCRIPT = """
import sys
sys.path.insert(0, {inside!r})
from loop import serve
print("noise on standard output")

def generate(prompts, output_lens):
    if len(prompts[0]) == 3:
        sys.exit("no")
    return [n if n != 5 else 4 for n in output_lens]

serve(generate)
"""


def test_a_script_answers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(inside=str(INSIDE)))
    log = tmp_path / "log"
    session = ScriptSession(Path(sys.executable), str(script), [], log)
    assert session.measure(DECODE, 0) > 0
    assert session.measure(replace(DECODE, task=Prefill(9)), 0) >= 0
    with pytest.raises(ContenderError, match=r"answers of \[4\] tokens instead of \[5\]"):
        session.measure(replace(DECODE, task=Decode(1, 4, 5)), 0)
    with pytest.raises(ContenderError, match="it ended; see "):
        session.measure(replace(DECODE, task=Prefill(3)), 0)
    session.close()
    assert log.read_text() == "noise on standard output\nno\n"


def test_a_script_that_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ContenderError, match="it ended"):
        ScriptSession(Path(sys.executable), str(tmp_path / "absent.py"), [], tmp_path / "log")
