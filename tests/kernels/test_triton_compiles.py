"""The Triton kernels compile for a GPU, without one; the interpreter, by which they are tested, does not show that."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")


def test_every_kernel_compiles() -> None:
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.kernels.compile_triton"],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert set(process.stdout.split("\n")) >= {
        f"{name} 90" for name in ("_attend", "_merge", "_rms_norm", "_gated", "_rotate_and_store")
    }
