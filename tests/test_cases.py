"""cases.md names tests that exist, and every case that a test names is in it."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
TABLE = (TESTS / "cases.md").read_text(encoding="utf-8")


def test_every_test_of_a_case_exists() -> None:
    named = re.findall(r"`(\S+\.py)::(\w+)`", TABLE)
    assert named
    for file, function in named:
        assert f"def {function}(" in (TESTS / file).read_text(encoding="utf-8"), f"{file}::{function}"


def test_every_row_has_a_test_or_a_reason() -> None:
    lines = re.findall(r"^\| C\d.*", TABLE, re.MULTILINE)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert len(rows) > 50
    for row in rows:
        assert len(row) == 3, row
        assert all(row), row
