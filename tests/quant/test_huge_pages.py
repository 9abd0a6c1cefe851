"""Weights in huge pages: the same numbers, beside each other, in memory that the kernel was asked about."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from fathom.pages import HUGE_PAGE
from fathom.quant.huge_pages import ALIGNMENT, MAPPING, HugePages, empty


def some(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel()).to(dtype).view(shape)


def test_copies_are_equal_and_aligned() -> None:
    memory = HugePages()
    tensors = [some(3, 5, 16, 4), some(7, dtype=torch.float16), some(100, 33, dtype=torch.float32), some(0, 4)]
    copies = [memory.take(tensor) for tensor in tensors]
    for tensor, copy in zip(tensors, copies, strict=True):
        assert torch.equal(copy, tensor)
        assert copy.dtype == tensor.dtype
        assert copy.is_contiguous()
        assert copy.nbytes == 0 or copy.data_ptr() % ALIGNMENT == 0


def test_a_large_tensor_has_its_own() -> None:
    large = empty((MAPPING // 64 + 1, 32), torch.float16)
    assert large.shape == (MAPPING // 64 + 1, 32)
    assert large.dtype == torch.float16
    assert HugePages().take(large) is large
    assert empty((3, 5), torch.uint8).shape == (3, 5)


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without huge pages")
def test_small_tensors_share_pages_that_were_asked_for() -> None:
    memory = HugePages()
    first, second = (memory.take(some(1000)) for _ in range(2))
    assert first.data_ptr() % HUGE_PAGE == 0
    assert second.data_ptr() == first.data_ptr() + 1024
    large = empty((MAPPING,), torch.uint8)
    assert large.data_ptr() % HUGE_PAGE == 0
    for tensor in (first, large):
        assert "hg" in flags_of(tensor.data_ptr())
    kept = first.clone()
    del memory
    gc.collect()
    assert torch.equal(first, kept)


def flags_of(address: int) -> list[str]:
    """The kernel's flags of the mapping that an address is in."""
    inside = False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            name, *rest = line.split()
            if "-" in name and not name.endswith(":"):
                start, end = (int(part, 16) for part in name.split("-"))
                inside = start <= address < end
            elif inside and name == "VmFlags:":
                return rest
    raise AssertionError("not mapped")
