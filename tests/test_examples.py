"""Every example runs to its end and prints what it is there to show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fathom.config import DEFAULT_MODEL
from tests.stand_in import write_stand_in

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

# Example -> what its output must match, one after the other.
SHOWN = {
    "generate.py": [r"'The sea is' -> '.+' \(\d+ tokens, (length|stop)\)", r"'def fibonacci\(n\):' -> "],
    "chat.py": [r"user: .+\nassistant: .+\n\(0 of \d+ prompt", r"\((?!0 )\d+ of \d+ prompt tokens were cached\)"],
    "stream.py": [r"\d\.\d{3} s +(sea|fathom)  '", r"whole answers: \['.+', '.+'\]"],
    "parallel_samples.py": [r"0: '", r"1: '", r"2: '", r"3: '", r"the same among others: True"],
    "logprobs.py": [r"prompt:\n  '.+' +\d+\.\d\d%  rank \d+", r"answer:\n  '.*' +\d+\.\d\d%  or '", r"answer: -\d"],
    "shared_prefix.py": [r"  0 of \d+ tokens cached", r"  (?!0 )\d+ of \d+ tokens cached", r"cache_hits': [1-9]"],
    "engine_loop.py": [r"step  1 +sea  '", r" sea  '' +abort\n", r" late  '.*' +length\n"],
    "custom_logits_processor.py": [r"plain: +'", r"without e: +'[^eE]+'\n"],
}


@pytest.fixture(scope="module")
def workplace(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workplace")
    write_stand_in(tiny("llama-gqa"), folder)
    return folder


def test_no_example_is_left_out() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_example(name: str, workplace: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), DEFAULT_MODEL],
        cwd=workplace,
        env={**os.environ, "FATHOM_LOGGING_LEVEL": "WARNING", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(".*".join(SHOWN[name]), done.stdout, re.DOTALL), done.stdout
