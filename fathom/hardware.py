"""What this process may use of the machine: cores and memory, within its cgroup and affinity; no torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from fathom import env

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Hardware:
    """cores: processors this process may run on. total_memory, available_memory: bytes, cgroup included.

    native_kernels: whether the compiled CPU kernels are installed. bfloat16_pairs: whether they multiply pairs of
    bfloat16 by one instruction here, as FATHOM_CPU_LEVEL may forbid. triton: whether Triton is, for a GPU's kernels.
    core_ids: numbers of the processors that threads can be bound to; empty where the system has no such thing.
    flash_attention: version of the package flash-attn, if it is installed.
    """

    cores: int
    total_memory: int
    available_memory: int
    native_kernels: bool
    core_ids: tuple[int, ...] = ()
    triton: bool = True
    flash_attention: str | None = None
    bfloat16_pairs: bool = False


def detect_hardware() -> Hardware:
    """Read the machine's limits now; available memory changes from moment to moment."""
    memory = psutil.virtual_memory()
    total, available = memory.total, memory.available
    limit, used = _cgroup_memory()
    if limit is not None and limit < total:
        total = limit
        available = min(available, max(0, limit - used))
    native_kernels = importlib.util.find_spec("fathom._cpu") is not None
    core_ids = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
    triton = importlib.util.find_spec("triton") is not None
    flash_attention = _version("flash-attn")
    return Hardware(
        _usable_cores(), total, available, native_kernels, core_ids, triton, flash_attention, _multiplies_pairs()
    )


def parse_cores(text: str) -> tuple[int, ...]:
    """The numbers in a list such as "0-3,8", in its order.

    Raises:
        ValueError: it is not such a list, or names a core twice.
    """
    cores: list[int] = []
    for item in text.split(","):
        first, dash, last = item.strip().partition("-")
        cores += range(int(first), int(last if dash else first) + 1)
    if not cores or len(set(cores)) < len(cores):
        raise ValueError(text)
    return tuple(cores)


def limit_openmp_spinning() -> None:
    """Let OpenMP threads wait for work briefly and then sleep; to be called before torch is imported.

    As it comes, a waiting thread spins for milliseconds. If another process wants the core meanwhile, each of a
    step's hundreds of parallel regions waits for the scheduler: ten times slower on two busy cores. A user's own
    setting is left alone.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def cpu_features() -> list[str]:
    """Instruction sets that matter to the kernels, as /proc/cpuinfo names them; empty where there is no such file."""
    wanted = (
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512_vnni",
        "avx_vnni",
        "avx512_bf16",
        "amx_int8",
        "asimd",
        "asimddp",
        "i8mm",
    )
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return []
    for line in text.splitlines():
        if line.lower().startswith(("flags", "features")):
            present = set(line.split(":", 1)[1].split())
            return [name for name in wanted if name in present]
    return []


def _multiplies_pairs() -> bool:
    try:
        from fathom import _cpu
    except ImportError:
        return False
    return (env.cpu_level() or _cpu.levels()[0]) == "avx512bf16"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _usable_cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    physical = psutil.cpu_count(logical=False)
    if physical:
        cores = min(cores, physical)
    quota = _read_words(_CGROUP / "cpu.max")
    if len(quota) == 2 and quota[0] != "max":
        cores = min(cores, max(1, int(quota[0]) // int(quota[1])))
    return max(1, cores)


def _cgroup_memory() -> tuple[int | None, int]:
    """(limit, used) in bytes, cgroup v2 then v1; limit None where there is none."""
    for limit_file, used_file in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        limit, used = _read_words(_CGROUP / limit_file), _read_words(_CGROUP / used_file)
        if limit and used and limit[0].isdigit():
            return int(limit[0]), int(used[0])
    return None, 0


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
