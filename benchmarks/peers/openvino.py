"""OpenVINO GenAI, from its wheel.

ONEDNN_MAX_CPU_ISA limits its products, but it asks the processor itself whether to compute in bfloat16 and whether to
quantise activations, and then finds no such product. At AVX2 it is told what it does on a processor without VNNI.
Attention and norms stay with the processor's best instructions.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.contender import ScriptSession, Session
from benchmarks.peers.environments import cache_dir, pip_install, virtual_environment
from benchmarks.peers.levels import AVX2, NATIVE, environment
from benchmarks.peers.works import Work

PACKAGE, VERSION = "openvino-genai", "2026.4.1.0"
PROPERTIES = {NATIVE: (), AVX2: ("INFERENCE_PRECISION_HINT=f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE=0")}


class OpenVINO:
    """Its two pipelines count as two formats: for one request the plain one may be faster."""

    name = "OpenVINO"
    slow_to_start = False

    def __init__(self, level: str = NATIVE) -> None:
        self._level = level

    def install(self) -> str:
        python = virtual_environment("openvino")
        installed = cache_dir() / "openvino" / f"installed-{VERSION}"
        if not installed.exists():
            pip_install(python, [f"{PACKAGE}=={VERSION}"], cache_dir() / "openvino-install.log")
            installed.touch()
        return VERSION

    def formats(self, work: Work) -> list[str]:
        return ["batching", "plain"] if work.task.concurrency == 1 else ["batching"]

    def open(self, model: Path, format_name: str, threads: int, log: Path) -> Session:
        arguments = [str(model), format_name, f"INFERENCE_NUM_THREADS={threads}", *PROPERTIES[self._level]]
        python, variables = virtual_environment("openvino"), environment(self._level)
        return ScriptSession(python, "run_openvino.py", arguments, log, environment=variables)
