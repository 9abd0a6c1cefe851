"""Checks Fathom on a GPU in seven minutes: kernels, boot, speed against the card's own limits, tokens.

    python scripts/gpu_check.py                          # on a machine with one CUDA device
    python scripts/gpu_check.py --device cpu --small     # the same script without one, on tiny models

From a source checkout; nothing need be installed or built. It needs torch >= 2.9, triton, numpy, tokenizers and
safetensors. What else the engine imports may lie in a folder that scripts/gpu_check_bundle.py fills on another machine
(--carry). Prints rows as they come, one table at the end, and writes the same as JSON. The exit code is 1 if a kernel,
a token or a part is wrong; goals of speed that are missed do not change it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.gpu_check.plan import BUDGET_S, comparisons, parts  # noqa: E402
from benchmarks.gpu_check.rows import Row, table  # noqa: E402
from benchmarks.gpu_check.run import Check  # noqa: E402

NEEDED = ("torch", "triton", "numpy", "tokenizers", "safetensors")
CARRIED = ("msgspec", "psutil", "tqdm", "jinja2")
"""Modules that the engine imports beside those; pyzmq and setproctitle as well if it is to have its own process."""


def main() -> int:
    options = parse_arguments()
    began = time.time()
    carried = [str(options.carry.resolve())] if options.carry.is_dir() else []
    check_modules(carried)
    plan = parts(options.device, options.small, options.seed)
    names = [part.name for part in plan]
    unknown = set(options.only or ()) - set(names)
    if unknown:
        raise SystemExit(f"no such part: {', '.join(sorted(unknown))}; there are: {'; '.join(names)}")
    chosen = [part for part in plan if options.only is None or part.name in options.only]
    with tempfile.TemporaryDirectory(prefix="fathom-gpu-check-") as work:
        check = Check(
            Path(work),
            carried,
            interpret=options.device == "cpu",
            at_once=2 if options.small else 6,
            budget_s=options.budget,
            tell=print_row,
        )
        check.run(chosen)
        check.compare(comparisons(options.small))
    seconds = time.time() - began
    print(f"\n{table(check.rows)}\n\n{seconds:.0f} s in all", flush=True)
    if options.small:
        print("A dry run, on tiny models: no figure of speed in it means anything.")
    write_json(options.json, check.rows, began, seconds, options)
    return 1 if any(row.is_error for row in check.rows) else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="%(default)s; cpu: Triton interprets")
    parser.add_argument("--small", action="store_true", help="tiny shapes: whether the script works, not the GPU")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for all parts (%(default)g)")
    parser.add_argument("--only", nargs="+", metavar="PART", help="these parts; their names are in the first column")
    parser.add_argument("--seed", type=int, help="of all random inputs; default: a new one")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "gpu-check.json", help="%(default)s")
    parser.add_argument(
        "--carry", type=Path, default=ROOT / "build" / "gpu-check", help="a folder of gpu_check_bundle.py (%(default)s)"
    )
    options = parser.parse_args()
    if options.device == "cpu" and not options.small:
        parser.error("--device cpu is for dry runs: add --small")
    return options


def check_modules(carried: list[str]) -> None:
    """Look for what is needed; what is carried comes last, so what is installed wins."""
    sys.path += carried
    missing = [name for name in (*NEEDED, *CARRIED) if find_spec(name) is None]
    if missing:
        raise SystemExit(
            f"{', '.join(missing)} cannot be imported. Install them, or run scripts/gpu_check_bundle.py where there is "
            "a network, and name its folder with --carry."
        )


def print_row(row: Row) -> None:
    print(" | ".join(cell for cell in row.cells() if cell), flush=True)


def write_json(path: Path, rows: list[Row], began: float, seconds: float, options: argparse.Namespace) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "date": time.strftime("%Y-%m-%d", time.localtime(began)),
        "seconds": seconds,
        "device": options.device,
        "small": options.small,
        "seed": options.seed,
    }
    path.write_text(json.dumps(about | {"rows": [row.as_json() for row in rows]}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
