"""Write README.md's table of speed from the one in docs/performance.md, so that both always say the same.

python scripts/make_readme_figures.py
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- figures: written by scripts/make_readme_figures.py -->\n", "<!-- end of figures -->\n"
SHOWN = {
    "decode, 1 sequence of 128 after 128": "one answer",
    "decode, 32 sequences of 64 after 128": "32 answers at once",
    "64 requests, in 32-256, out 32-256": "64 requests of mixed lengths",
    "prefill, 512 tokens": "reading a prompt of 512 tokens",
}
"""Works in the table of docs/performance.md that the README shows, and what it calls them."""
MEDIAN = re.compile(r"[\d,.]+")


def figures(performance: str) -> str:
    """A table of medians, as wide as docs/performance.md's first one.

    Args:
        performance: the text of docs/performance.md.
    """
    rows = [
        [cell.strip() for cell in line.strip("| \n").split("|")] for line in performance.splitlines() if "|" in line
    ]
    header = next(row for row in rows if row[0] == "work")
    columns = [index for index, title in enumerate(header) if title not in ("work", "pairs")]
    table = [f"| tokens a second | {' | '.join(header[index] for index in columns)} |", f"|---{'|---' * len(columns)}|"]
    for work, name in SHOWN.items():
        row = next(row for row in rows if row[0] == work)
        medians = [MEDIAN.match(row[index]) for index in columns]
        table.append(f"| {name} | {' | '.join(median[0] if median else '-' for median in medians)} |")
    return "\n".join(table)


def with_figures(readme: str, performance: str) -> str:
    """The README with what stands between the markers written anew."""
    head, _, rest = readme.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{figures(performance)}\n{END}{tail}"


if __name__ == "__main__":
    README = ROOT / "README.md"
    pages = [path.read_text(encoding="utf-8") for path in (README, ROOT / "docs" / "performance.md")]
    README.write_text(with_figures(*pages), encoding="utf-8")
