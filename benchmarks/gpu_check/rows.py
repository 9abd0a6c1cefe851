"""Row: one line of the check's table; and the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """What was seen.

    part: who says so. unit: of the figure. least, most: the goal. must: who misses it is wrong, not slow.
    note: what else is to be known, or for a row without a figure all of it. failed: it did not get as far as a figure.
    """

    part: str
    what: str
    figure: float | None = None
    unit: str = ""
    least: float | None = None
    most: float | None = None
    must: bool = False
    note: str = ""
    failed: bool = False

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is met; None where there is none."""
        if self.failed:
            return False
        if self.figure is None or (self.least is None and self.most is None):
            return None
        # Written so that a figure that is not a number meets no goal.
        return (self.least is None or self.figure >= self.least) and (self.most is None or self.figure <= self.most)

    @property
    def is_error(self) -> bool:
        """Whether the check as a whole must fail for it."""
        return self.failed or (self.must and self.is_met is False)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.is_met}

    def cells(self) -> tuple[str, ...]:
        verdict = {None: "", True: "ok", False: "WRONG" if self.must else "missed"}[self.is_met]
        goal = "" if self.least is None else f">= {self.least:g}"
        goal = goal if self.most is None else f"<= {self.most:g}"
        if self.failed:
            return self.part, self.what, "", "", "FAILED", self.note
        return self.part, self.what, number(self.figure, self.unit), goal, verdict, self.note


Report = Callable[..., None]
"""report(what, figure=None, unit="", **the rest of a Row): how a part says something."""


@contextmanager
def attempt(report: Report, what: str) -> Iterator[None]:
    """What goes wrong within is a row, and the part goes on."""
    try:
        yield
    except Exception as error:
        message = str(error).strip().split("\n")[0]
        report(what, failed=True, note=f"{type(error).__name__}: {message[:300]}")


def number(figure: float | None, unit: str) -> str:
    if figure is None:
        return ""
    if unit in ("s", "x"):
        digits = f"{figure:.2f}"
    elif unit == "error":
        digits = f"{figure:.1e}"
    else:
        digits = f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.3g}"
    return f"{digits} {unit}".rstrip()


def table(rows: Sequence[Row]) -> str:
    """All rows, a part's beside each other, in Markdown that is also readable as it is."""
    header = ("part", "what", "figure", "goal", "result", "note")
    cells = [header, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(header) - 1)]

    def line(texts: tuple[str, ...]) -> str:
        padded = [text.ljust(width) for text, width in zip(texts, widths, strict=False)]
        return f"| {' | '.join([*padded, texts[-1]])} |"

    rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|---|"
    return "\n".join([line(header), rule, *map(line, cells[1:])])
