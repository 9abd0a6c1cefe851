"""The process of one part: python -m benchmarks.gpu_check.part MODULE FILE ARGUMENTS

Each row goes to the file, a line of JSON, as soon as it is known: what a part has said before it fails stays.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any


def main(module: str, file: str, arguments: str) -> None:
    told: dict[str, Any] = json.loads(arguments)
    sys.path += told.pop("carried")
    with Path(file).open("a", encoding="utf-8") as lines:

        def report(what: str, figure: float | None = None, unit: str = "", **rest: Any) -> None:
            print(json.dumps({"what": what, "figure": figure, "unit": unit, **rest}), file=lines, flush=True)

        importlib.import_module(f"benchmarks.gpu_check.{module}").run(report, **told)


if __name__ == "__main__":
    main(*sys.argv[1:])
