"""The GPU check, dry: the whole script on tiny models; a part that is wrong, dies or hangs is a row and no more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from benchmarks.gpu_check.plan import BUDGET_S, MODES, Comparison, Part, comparisons, parts
from benchmarks.gpu_check.rows import Row, attempt, table
from benchmarks.gpu_check.run import Check

ROOT = Path(__file__).resolve().parents[2]


def test_the_whole_script_runs_dry(tmp_path: Path) -> None:
    found = tmp_path / "rows.json"
    command = [sys.executable, "scripts/gpu_check.py", "--device", "cpu", "--small", "--json", str(found)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    rows = json.loads(found.read_text())["rows"]
    assert {row["part"] for row in rows} == {part.name for part in parts("cpu", small=True)} | {"compared"}
    assert not [row for row in rows if row["failed"] or (row["must"] and not row["met"])]
    said = {(row["part"], row["what"]) for row in rows}
    for expected in (
        ("attention, float16", "head dim 64"),
        ("layers, float16", "norms"),
        ("packed weights", "products, float16"),
        ("sampling", "drawn, 130 tokens"),
        ("tokens", "answers equal to the CPU's"),
        ("1.7B", "boot: ready after LLM(...)"),
        ("8B", "decode, 1, of the limit"),
        ("compared", "async over sync, mixed steps"),
    ):
        assert expected in said
    assert process.stdout.count("| part ") == 1


def check_in(folder: Path, budget_s: float = 600.0) -> Check:
    return Check(folder, [], interpret=True, at_once=1, budget_s=budget_s, tell=lambda row: None)


def test_a_part_that_fails_or_hangs_is_a_row_and_the_others_go_on(tmp_path: Path) -> None:
    ceilings = {"device": "cpu", "dtype": "float32", "copy_bytes": 4096, "matrix": 8, "seed": 0}
    check = check_in(tmp_path)
    check.run(
        [
            Part("half", "ceilings", 300, ceilings | {"matrix": -1}),
            Part("hangs", "ceilings", 0.01, ceilings),
            Part("works", "ceilings", 300, ceilings),
        ]
    )
    failed = {row.part: row.note for row in check.rows if row.failed}
    assert failed.keys() == {"half", "hangs"}
    assert failed["half"].startswith("exited with code 1: RuntimeError: ")
    assert failed["hangs"] == "not done after 0 s"
    assert [row.what for row in check.rows if row.part == "half" and row.figure][:2] == [
        "bandwidth, copy",
        "bandwidth, sum",
    ]
    assert ("works", "matmul, float32") in {(row.part, row.what) for row in check.rows}


def test_what_there_is_no_time_for_is_left_out(tmp_path: Path) -> None:
    check = check_in(tmp_path, budget_s=1.0)
    check.run([Part("late", "ceilings", 60)])
    assert check.rows == [Row("late", "left out", note="the time is up")]


def test_a_row_says_whether_its_goal_is_met() -> None:
    assert Row("a", "b", 81.0, "%", least=80).is_met is True
    assert Row("a", "b", 3.0, "s", most=2.5).is_met is False
    assert Row("a", "b", 3.0).is_met is None
    slow, wrong, none = (
        Row("a", "b", 79.0, "%", least=80),
        Row("a", "b", 0.5, "error", most=0.1, must=True),
        Row("a", "b", float("nan"), "error", most=0.1, must=True),
    )
    assert [row.is_error for row in (slow, wrong, none)] == [False, True, True]
    assert [row.cells()[4] for row in (slow, wrong, none)] == ["missed", "WRONG", "WRONG"]
    assert table([slow]).count("\n") == 2


def test_what_goes_wrong_in_an_attempt_is_said() -> None:
    said = []
    with attempt(lambda *args, **rest: said.append((args, rest)), "a case"):
        raise ValueError("no room\nmore of it")
    assert said == [(("a case",), {"failed": True, "note": "ValueError: no room"})]


def test_comparisons_are_of_figures_that_are_both_there(tmp_path: Path) -> None:
    check = check_in(tmp_path)
    check.rows = [Row("1.7B", "x", 6.0), Row("1.7B eager", "x", 2.0)]
    check.compare([Comparison("c", "x", "1.7B", "1.7B eager"), Comparison("d", "x", "1.7B", "1.7B sync")])
    assert check.rows[2:] == [Row("compared", "c", 3.0, "x")]


def test_the_plan_for_a_gpu_fits_the_budget_as_far_as_it_matters() -> None:
    """What may run beside each other counts once; the last engines are there for comparison and may be left out."""
    plan = parts("cuda", small=False)
    assert len({part.name for part in plan}) == len(plan)
    assert set(MODES) <= {part.name for part in plan}
    kernels = max(part.limit_s for part in plan if part.beside)
    alone = sum(part.limit_s for part in plan if not part.beside and part.name not in list(MODES)[1:])
    assert kernels + alone <= BUDGET_S + 60
    for one in comparisons(small=False):
        assert {one.part, one.over} <= set(MODES)
