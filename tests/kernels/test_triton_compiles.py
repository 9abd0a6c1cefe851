"""The Triton kernels compile for a GPU, without one; the interpreter, by which they are tested, does not show that."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

KERNELS = {
    "activation.triton": "_gated",
    "attention.triton": "_attend _merge",
    "embedding.triton": "_decode_rows",
    "fp8_matmul.triton": "_multiply",
    "norm.triton": "_rms_norm",
    "penalties.triton": "_apply",
    "quant_matmul.triton": "_multiply",
    "rotate_and_store.triton": "_rotate_and_store",
    "row_search": "_best_of_tiles _narrow _finish",
    "sampling.triton": "_best_tokens _set_floors _measure _set_goals _draw_tokens _truncate",
    "token_logprobs.triton": "_count _compact _measure _score",
}


def test_every_kernel_compiles() -> None:
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.kernels.compile_triton"],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    compiled = set(process.stdout.splitlines())
    for module, kernels in KERNELS.items():
        for kernel in kernels.split():
            assert f"fathom.kernels.{module} {kernel} 90" in compiled
    assert "fathom.kernels.attention.triton _attend 89" in compiled
