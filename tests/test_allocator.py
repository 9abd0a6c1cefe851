"""What a process that serves does with memory that it does not need any more."""

from __future__ import annotations

import re
import subprocess
import sys

DECODE_AND_TRIM = """
import sys
import msgspec
from fathom.allocator import HeapTrimmer

body = msgspec.json.encode([{f"{n}" if n % 200 == 0 else "a": [1.5] * 20} for n in range(60000)])
trimmer = HeapTrimmer(interval_s=0.0)
msgspec.json.decode(body)
if sys.argv[1] == "trim":
    trimmer.tick()
sys._debugmallocstats()
"""


def megabytes_of_python_s_heap(*arguments: str) -> int:
    """Of a process that has decoded 5 MB of JSON, with a new key now and then, and let go of it."""
    command = [sys.executable, "-c", DECODE_AND_TRIM, *arguments]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    (arenas,) = re.findall(r"# arenas allocated current *= *([\d,]+)", report)
    return int(arenas.replace(",", ""))


def test_a_large_body_s_memory_is_given_back() -> None:
    kept, trimmed = megabytes_of_python_s_heap("keep"), megabytes_of_python_s_heap("trim")
    assert kept > 40  # keys that msgspec remembers hold on to it
    assert trimmed < 20
