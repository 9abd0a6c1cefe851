"""Write the tables of options in docs/configuration.md from fathom/config.py; with --check, only say if they are stale.

python scripts/make_option_table.py [--check]
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fathom.config import EngineConfig

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
BEGIN = "<!-- options: written by scripts/make_option_table.py -->\n"
END = "<!-- end of options -->\n"


def option_tables() -> str:
    """A heading and a table for each section of the config."""
    return "\n".join(_section(kind) for kind in get_type_hints(EngineConfig).values())


def with_tables(page: str) -> str:
    """The page with what stands between the markers written anew."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{option_tables()}\n{END}{tail}"


def _section(kind: Any) -> str:
    hints = get_type_hints(kind)
    rows = [
        f"| `{item.name}` | {_type_words(hints[item.name])} | `{item.default!r}` | {item.metadata['help']} |\n"
        for item in dataclasses.fields(kind)
    ]
    title = kind.__doc__.rstrip(".")
    return f"### {title}\n\n| Option | Type | Default | |\n|---|---|---|---|\n" + "".join(rows)


def _type_words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice!r}`" for choice in get_args(kind))
    if get_origin(kind) is tuple:
        return f"list of {get_args(kind)[0].__name__}"
    alternatives = get_args(kind)
    if alternatives:
        return " or ".join(_type_words(item) for item in alternatives)
    return "None" if kind is type(None) else str(kind.__name__)


def main(arguments: list[str]) -> int:
    """Write the page, or with --check return 1 if it would change."""
    page = PAGE.read_text(encoding="utf-8")
    fresh = with_tables(page)
    if arguments == ["--check"]:
        if page != fresh:
            print(f"{PAGE} is stale; run python scripts/make_option_table.py", file=sys.stderr)
        return int(page != fresh)
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
