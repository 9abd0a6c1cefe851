"""What bounds this machine and this model: how fast memory is read, how fast products go, what a token reads.

A step can be no faster than its bytes over the bandwidth, nor than its operations over the peak (the roofline of
Williams, Waterman and Patterson, 2009). Both limits are measured with torch alone, so that they do not depend on the
kernels that are to be judged by them.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fathom.kernels import native
from fathom.layers.linear import Linear
from fathom.quant.packed import PackedWeight

if TYPE_CHECKING:
    from fathom.kv_cache_spec import LayerKVSpec
    from fathom.models.decoder import CausalLM
    from fathom.worker.device import Device

READ_BYTES = 1 << 28  # more than any cache holds
MATRIX = 2048
ROUNDS = 3


def describe(model: CausalLM, kv_specs: list[LayerKVSpec]) -> dict[str, Any]:
    """kernels: the native kernels' instruction set level, or "torch". weight_bytes: weights that one token reads.
    kv_bytes_per_position: keys and values of one token, all layers together. quantised: whether matrices are integers.

    Of rope tables, and of an embedding that is not the head's matrix too, a token reads a row.
    """
    embedding = model.embedding
    unread = 0
    if isinstance(embedding, Linear) and not model.config.tie_word_embeddings:
        unread = embedding.part_bytes() + _plain_bytes(embedding.weight)
    return {
        "kernels": "torch" if native.cpu is None else native.cpu.level(),
        "weight_bytes": model.weight_bytes() - unread,
        "quantised": any(
            isinstance(part.matrix, PackedWeight)
            for layer in model.modules()
            if isinstance(layer, Linear)
            for part in getattr(layer, "parts", ())
        ),
        "kv_bytes_per_position": sum(spec.bytes_per_token for spec in kv_specs),
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


def _plain_bytes(parameter: torch.Tensor) -> int:
    """0 if the parameter is only declared."""
    return 0 if parameter.is_meta else parameter.nbytes
