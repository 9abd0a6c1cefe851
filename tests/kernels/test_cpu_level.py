"""FATHOM_CPU_LEVEL chooses the instruction set level of the native kernels."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

native = pytest.importorskip("fathom._cpu")


def load(level: str) -> subprocess.CompletedProcess[str]:
    program = "from fathom.kernels.native import cpu; print(cpu.level())"
    environment = os.environ | {"FATHOM_CPU_LEVEL": level}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120, env=environment
    )


def test_a_level_is_taken() -> None:
    assert load(native.levels()[-1]).stdout.strip() == native.levels()[-1]


def test_an_unknown_level_is_refused_with_those_that_there_are() -> None:
    message = load("best").stderr.splitlines()[-1]
    assert message.endswith(
        "The environment variable FATHOM_CPU_LEVEL must be a level of this processor, got 'best'. "
        f"Here are: {', '.join(native.levels())}."
    )
