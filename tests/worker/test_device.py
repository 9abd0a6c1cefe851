"""The CPU's threads: one pool at a time has the cores."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Iterator

import pytest
import torch

from fathom.config import EngineConfig
from fathom.kernels import native
from fathom.worker.device import CPUDevice

pytestmark = pytest.mark.skipif(native.cpu is None, reason="there is one pool only")


@pytest.fixture(autouse=True)
def _threads_as_they_were() -> Iterator[None]:
    before = torch.get_num_threads(), native.cpu.num_threads()
    yield
    torch.set_num_threads(before[0])
    native.cpu.set_num_threads(before[1])


@pytest.mark.parametrize(("weights", "torch_threads"), [("packed", 1), ("dense", 2)])
def test_torch_leaves_the_cores_to_the_kernels_that_do_the_work(weights: str, torch_threads: int) -> None:
    CPUDevice(EngineConfig.from_options(weights=weights, num_threads=2))
    assert torch.get_num_threads() == torch_threads
    assert native.cpu.num_threads() == 2


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not bind threads")
def test_threads_are_bound_to_the_cores_that_are_named() -> None:
    before, others = os.sched_getaffinity(0), set(os.listdir("/proc/self/task"))
    if len(before) < 2:
        pytest.skip("one core only")
    last, first = sorted(before)[:2]
    try:
        native.cpu.set_num_threads(1)
        CPUDevice(EngineConfig.from_options(weights="packed", num_threads=2, cpu_cores=f"{first},{last}"))
        (new,) = set(os.listdir("/proc/self/task")) - others
        assert os.sched_getaffinity(int(new)) == {last}
        assert os.sched_getaffinity(0) == {first, last}
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.skipif(sys.platform != "linux", reason="others do not tell what is in memory")
def test_blocks_take_memory_when_it_is_provided_and_are_still_zeros() -> None:
    device = CPUDevice(EngineConfig.from_options(weights="packed"))
    blocks = device.empty_blocks(64, 2**20)
    if not device.provide(blocks[8:16]):
        pytest.skip("this system cannot")
    pages = 2**20 // mmap.PAGESIZE
    in_memory = (ctypes.c_ubyte * (64 * pages))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(blocks.data_ptr()), ctypes.c_size_t(blocks.nbytes), in_memory) == 0
    per_block = [sum(in_memory[block * pages : (block + 1) * pages]) for block in range(64)]
    assert per_block == [0] * 8 + [pages] * 8 + [0] * 48
    assert not blocks[8:16].any()
