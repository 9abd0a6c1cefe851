"""How long a user waits: for `import fathom`, and for an LLM that can answer.

Each run is a fresh interpreter. The targets, with warm caches on 2 cores: 0.3 s for the import, which brings no torch,
and 6 s for the default model.

    python benchmarks/startup.py --model smollm2-135m --runs 5
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from table import print_header, print_row

IMPORT = """
import json, sys, time
start = time.perf_counter()
import fathom
print(json.dumps({"seconds": time.perf_counter() - start, "torch": "torch" in sys.modules}))
"""
START = """
import json, sys, time
start = time.perf_counter()
from fathom import LLM, SamplingParams
imported = time.perf_counter()
llm = LLM(sys.argv[1], show_progress=False)
ready = time.perf_counter()
llm.generate("Hello", SamplingParams(max_tokens=1), use_tqdm=False)
print(json.dumps({
    "import LLM": imported - start, "ready": ready - start, "first token": time.perf_counter() - start,
    "phases": llm.llm_engine.ready.phases, "torch": "torch" in sys.modules,
}))
"""


def run(script: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    for script, arguments in ((IMPORT, ()), (START, (options.model,))):
        run(script, *arguments)  # fills the caches
    imports = [run(IMPORT) for _ in range(options.runs)]
    starts = [run(START, options.model) for _ in range(options.runs)]
    print_header("s")
    print_row("import fathom", [result["seconds"] for result in imports])
    for name in ("import LLM", "ready", "first token"):
        print_row(f"LLM({options.model!r}): {name}", [result[name] for result in starts])
    for index, (name, _) in enumerate(starts[0]["phases"]):
        print_row(f"    engine: {name}", [result["phases"][index][1] for result in starts])
    print(f"torch came with the import: {imports[0]['torch']}; is in the caller of an LLM: {starts[0]['torch']}")


if __name__ == "__main__":
    main()
