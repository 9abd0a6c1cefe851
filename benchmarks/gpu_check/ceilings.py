"""What the device can do at best, measured with torch alone: bytes a second, and operations a second by dtype."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec

import torch

from benchmarks.gpu_check.rows import Report


def run(report: Report, *, device: str, dtype: str, copy_bytes: int, matrix: int, seed: int) -> None:
    """The copy counts bytes read and written; matrices are random, since zeros may be multiplied faster."""
    number = getattr(torch, dtype)
    torch.manual_seed(seed)
    report("device", note=describe(device))
    report_bandwidth(report, device, copy_bytes)
    left, right = (torch.randn(matrix, matrix, device=device).to(number) for _ in range(2))
    seconds = seconds_of(lambda: left @ right, device)
    report(f"matmul, {dtype}", 2 * matrix**3 / seconds / 1e12, "TFLOP/s", note=f"random matrices of {matrix}")


def report_bandwidth(report: Report, device: str, copy_bytes: int) -> None:
    source = torch.randn(copy_bytes // 4, device=device)
    target = torch.empty_like(source)
    seconds = seconds_of(lambda: target.copy_(source), device)
    report("bandwidth, copy", 2 * copy_bytes / seconds / 1e9, "GB/s")
    report("bandwidth, sum", copy_bytes / seconds_of(source.sum, device) / 1e9, "GB/s")


def describe(device: str) -> str:
    """What is measured, and with what."""
    compiled = "here" if find_spec("fathom._cpu") is not None else "not built"
    versions = [f"torch {torch.__version__}", f"native host kernels {compiled}"]
    if find_spec("triton") is not None:
        versions.insert(1, f"triton {version('triton')}")
    if device != "cuda":
        return ", ".join(["CPU", *versions])
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    return ", ".join([f"{torch.cuda.get_device_name(0)} ({memory:.0f} GiB)", *versions])


def seconds_of(call: Callable[[], object], device: str, repeats: int = 10) -> float:
    """The mean of some calls, one after the other, after three that are not counted."""
    for _ in range(3):
        call()
    _wait(device)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    _wait(device)
    return (time.perf_counter() - start) / repeats


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
