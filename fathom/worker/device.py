"""Device: where a worker computes, as an object. One model runner serves every kind."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import torch

from fathom.allocator import keep_freed_memory
from fathom.config import EngineConfig
from fathom.dist.place import ONLY, Place
from fathom.errors import ConfigError
from fathom.hardware import detect_hardware, parse_cores
from fathom.kernels import native
from fathom.pages import map_huge_pages, provide_pages
from fathom.worker.graph_capture import GraphCapture, TorchGraphCapture
from fathom.worker.memory import GIB, MemoryUse

logger = logging.getLogger(__name__)

CPU_KV_MEMORY_SHARE = 0.4
"""Share of the memory that is available once the weights are loaded that the KV cache may take on a CPU."""


class Mark(Protocol):
    """A place in what a device has been given to do."""

    def synchronize(self) -> None:
        """Wait until the device has passed it."""


class Passed:
    """The mark of a device that has done everything."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


class Device(ABC):
    """A torch device and what differs between kinds of them."""

    torch_device: torch.device
    runs_behind: bool
    """Whether it does what it is given later, in order, while the host goes on: then nothing is read back before its
    mark is passed, and a step's tokens stay where they are."""
    replays_steps: bool
    """Whether steps can be recorded and replayed (worker/recorded_steps.py)."""
    keys_by_token = False
    """How its kernels want a page's keys to lie (kv_cache_spec)."""

    @abstractmethod
    def profile(
        self, weights: int, run_largest_batch: Callable[[], None], measure_graphs: Callable[[], int]
    ) -> MemoryUse:
        """What the memory is taken by, now that the weights are loaded: so many bytes of it.

        May run the largest batch, and capture some graphs, to measure what they take.
        """

    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """Bytes that are free, and bytes there are."""

    def release_cached_memory(self) -> None:  # noqa: B027 - on a CPU the engine's loop does it now and then
        """Give back to the system what was freed and kept for later."""

    def graph_capture(self) -> GraphCapture:
        """What captures CUDA graphs; only where the config asks for them."""
        raise NotImplementedError(f"{self.torch_device} has no graphs")

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until everything that was launched is done."""

    def copy_to_device(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy from pinned memory, which is not to be written again before a later mark is passed."""
        target.copy_(source, non_blocking=True)

    def copy_to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the host; its values are there when a later mark is passed."""
        return tensor

    def mark(self) -> Mark:
        """The place up to which it has been given work."""
        return Passed()

    @abstractmethod
    def busy_s(self) -> float:
        """A clock, in seconds, of our own work on the device: what else the machine does meanwhile counts little."""

    def empty_blocks(self, num_blocks: int, block_bytes: int) -> torch.Tensor:
        """[num_blocks, block_bytes] uint8 for a KV cache, of zeros."""
        return torch.zeros(num_blocks, block_bytes, dtype=torch.uint8, device=self.torch_device)

    def provide(self, blocks: torch.Tensor) -> bool:
        """Have memory for some of the `empty_blocks` before they are first used; whether that is of any use."""
        return False


class CPUDevice(Device):
    """The CPU, with as many threads as the config says.

    With packed weights nearly all work is the native kernels', and torch gets one thread: two pools would fight for
    the same cores.
    """

    def __init__(self, config: EngineConfig, place: Place = ONLY) -> None:
        self.torch_device = torch.device("cpu")
        self.runs_behind = False
        self._num_workers = place.workers_here or place.num_workers  # among which the memory is shared out
        self.replays_steps = native.cpu is not None
        keep_freed_memory()
        num_threads = config.runtime.num_threads
        if num_threads is None:
            return
        cores = () if config.runtime.cpu_cores is None else parse_cores(config.runtime.cpu_cores)
        if cores:  # of the calling thread; torch's threads inherit it, so they share all cores
            os.sched_setaffinity(0, cores)
        packed = config.model.weights == "packed" and native.cpu is not None
        torch.set_num_threads(1 if packed else num_threads)
        with contextlib.suppress(RuntimeError):  # can be set once per process
            torch.set_num_interop_threads(1)
        if native.cpu is not None:
            native.cpu.set_num_threads(num_threads, cores)

    def profile(
        self, weights: int, run_largest_batch: Callable[[], None], measure_graphs: Callable[[], int]
    ) -> MemoryUse:
        """The KV cache gets a share of what is available, so that a step has the rest; it is not measured."""
        available, total = self.memory()
        share = int(available * CPU_KV_MEMORY_SHARE / self._num_workers)
        others = max(0, total - available - weights)
        logger.info(
            "KV cache may take %.0f %% of the %.1f GiB that are available", 100 * CPU_KV_MEMORY_SHARE, available / GIB
        )
        return MemoryUse(total, others + weights + share, others, weights)

    def memory(self) -> tuple[int, int]:
        hardware = detect_hardware()
        return hardware.available_memory, hardware.total_memory

    def synchronize(self) -> None:
        """Nothing runs behind our back."""

    def busy_s(self) -> float:
        """This thread's processor time: it has its share of each step, and sleeps while other threads are late."""
        return time.thread_time()

    def empty_blocks(self, num_blocks: int, block_bytes: int) -> torch.Tensor:
        """Zeroed by the system, page by page, when they are first used.

        In huge pages where the system has them: attention walks over all of a long sequence's blocks in every layer
        of every step, more than the processor's page table caches hold in small ones.
        """
        size = num_blocks * block_bytes
        memory = map_huge_pages(size)
        if memory is None:
            return super().empty_blocks(num_blocks, block_bytes)
        return torch.from_numpy(memory[:size]).view(num_blocks, block_bytes)

    def provide(self, blocks: torch.Tensor) -> bool:
        return provide_pages(blocks.data_ptr(), blocks.nbytes)


class CUDADevice(Device):
    """One CUDA device."""

    keys_by_token = True

    def __init__(self, config: EngineConfig, place: Place = ONLY) -> None:
        if not torch.cuda.is_available():
            raise ConfigError(
                "device=cuda, but torch finds no CUDA device.",
                parameter="device",
                value="cuda",
                hint="Use device=cpu, or install a CUDA build of torch and its driver.",
            )
        count = torch.cuda.device_count()
        index = place.rank if place.device_index is None else place.device_index
        if place.device_index is None and place.num_workers > count:
            raise ConfigError(
                f"tensor_parallel_size={place.tensor_parallel_size} x "
                f"pipeline_parallel_size={place.pipeline_parallel_size} needs {place.num_workers} CUDA devices; "
                f"torch finds {count}.",
                parameter="tensor_parallel_size",
                value=place.tensor_parallel_size,
                hint=f"Use at most {count} workers.",
            )
        if place.num_workers > 1:
            torch.cuda.set_device(index)
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        _check_fp8(config, torch.cuda.get_device_capability(self.torch_device))
        self.runs_behind = True
        self.replays_steps = False
        self._share = config.cache.gpu_memory_utilization

    def profile(
        self, weights: int, run_largest_batch: Callable[[], None], measure_graphs: Callable[[], int]
    ) -> MemoryUse:
        """Both are run. What the driver loads with the first kernels counts as others', so they are measured last."""
        self.release_cached_memory()
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        run_largest_batch()
        self.synchronize()
        peak = torch.cuda.max_memory_allocated(self.torch_device)
        self.release_cached_memory()
        graphs = measure_graphs()
        self.release_cached_memory()
        free, total = self.memory()
        others = total - free - torch.cuda.memory_reserved(self.torch_device)
        return MemoryUse(total, int(total * self._share), others, weights, max(0, peak - weights), graphs)

    def memory(self) -> tuple[int, int]:
        return torch.cuda.mem_get_info(self.torch_device)

    def release_cached_memory(self) -> None:
        self.synchronize()
        torch.cuda.empty_cache()

    def graph_capture(self) -> GraphCapture:
        return TorchGraphCapture(self.torch_device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def copy_to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)  # from a cache, once there is one free
        return host.copy_(tensor, non_blocking=True)

    def mark(self) -> Mark:
        event = torch.cuda.Event()
        event.record()
        return event

    def busy_s(self) -> float:
        self.synchronize()
        return time.perf_counter()


def _check_fp8(config: EngineConfig, capability: tuple[int, int]) -> None:
    """Refuse what is stored as float8_e4m3 on GPUs that cannot widen it."""
    asked = (
        ("kv_cache_dtype", config.cache.kv_cache_dtype, "fp8_e4m3", "Use fp8_e5m2 or int8."),
        ("quantization", config.model.quantization, "fp8", "Leave it out."),
    )
    for name, value, e4m3, hint in asked:
        if value == e4m3 and capability < (8, 9):
            raise ConfigError(
                f"{name}={value} needs a GPU of compute capability 8.9 or more; this one has "
                f"{capability[0]}.{capability[1]}.",
                parameter=name,
                value=value,
                hint=hint,
            )


def make_device(config: EngineConfig, place: Place = ONLY) -> Device:
    """The device that a resolved config names; the one of several that the worker of this place has."""
    return CUDADevice(config, place) if config.runtime.device == "cuda" else CPUDevice(config, place)
