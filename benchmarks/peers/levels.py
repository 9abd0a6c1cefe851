"""Which instructions the engines may use: all that the processor has, or AVX2 and no more.

A race at AVX2 shows on a newer processor what an older one would do. llama.cpp is built for it; the others read these
variables, and what OpenVINO needs beside them is in its adapter.
"""

from __future__ import annotations

import os

NATIVE, AVX2 = "native", "avx2"
LEVELS = (NATIVE, AVX2)
LIMITS = {
    NATIVE: {},
    AVX2: {
        "FATHOM_CPU_LEVEL": "avx2",
        "ATEN_CPU_CAPABILITY": "avx2",  # torch's own kernels
        "ONEDNN_MAX_CPU_ISA": "AVX2",  # torch's and OpenVINO's products
    },
}
"""Environment variables, by level."""


def environment(level: str) -> dict[str, str]:
    """Of an engine's process that is to keep to the level."""
    return os.environ | LIMITS[level]
