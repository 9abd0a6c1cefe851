"""What bounds this machine and this model: how fast memory is read, how fast products go, what a token reads.

A step can be no faster than its bytes over the bandwidth, nor than its operations over the peak (the roofline of
Williams, Waterman and Patterson, 2009). Both limits are measured with torch alone, so that they do not depend on the
kernels that are to be judged by them.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from fathom.kernels import native

if TYPE_CHECKING:
    from fathom.models.decoder import CausalLM
    from fathom.worker.device import Device

READ_BYTES = 1 << 28  # more than any cache holds
MATRIX = 2048
ROUNDS = 3


def describe(model: CausalLM) -> dict[str, Any]:
    """kernels: the native kernels' instruction set level, or "torch". weight_bytes: weights that one token reads.
    kv_bytes_per_position: keys and values of one token, all layers together.

    Of rope tables, and of an embedding that is not the head's matrix too, a token reads a row.
    """
    unread = {id(module) for module in model.ropes}
    if not model.config.tie_word_embeddings:
        unread.add(id(model.embedding))
    tensors = {
        tensor.data_ptr(): tensor.nbytes
        for module in model.modules()
        if id(module) not in unread
        for tensor in _tensors([module._parameters, vars(module)])
    }
    return {
        "kernels": "torch" if native.cpu is None else native.cpu.level(),
        "weight_bytes": sum(tensors.values()),
        "kv_bytes_per_position": sum(spec.bytes_per_token for spec in model.kv_specs()),
    }


def measure_limits(device: Device, num_threads: int) -> dict[str, float]:
    """read_bandwidth: bytes a second. float32_peak, int8_peak: operations a second; an int8 peak of 0: not known.

    Sums 256 MiB, and multiplies square matrices of 2,048 with torch's float32 and dynamic int8 products (FBGEMM on
    x86); the best of a few rounds, with as many threads as the model has.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        data = torch.ones(READ_BYTES // 4, device=device.torch_device)
        matrix = torch.ones(MATRIX, MATRIX, device=device.torch_device)
        operations = 2 * MATRIX**3
        return {
            "read_bandwidth": READ_BYTES / _best_seconds(device, data.sum),
            "float32_peak": operations / _best_seconds(device, lambda: matrix @ matrix),
            "int8_peak": operations / _best_seconds(device, product) if (product := _int8_product(matrix)) else 0.0,
        }
    finally:
        torch.set_num_threads(before)


def _int8_product(matrix: torch.Tensor) -> Callable[[], torch.Tensor] | None:
    """matrix times itself in int8; None where torch has no fast product for it."""
    if matrix.device.type != "cpu" or "x86" not in torch.backends.quantized.supported_engines:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates how such a matrix is made, and has no other way to make it
        packed = torch.ops.quantized.linear_prepack(torch.quantize_per_tensor(matrix, 0.01, 0, torch.qint8), None)
    return lambda: torch.ops.quantized.linear_dynamic(matrix, packed, False)


def _best_seconds(device: Device, call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        call()
        device.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a module's attributes, in containers and dataclasses too; its submodules answer for themselves."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from _tensors([getattr(value, item.name) for item in dataclasses.fields(value)])
