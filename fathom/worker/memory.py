"""MemoryUse: what a device's memory is taken by, as it is counted before the KV cache is allocated.

    weights        as they are loaded
    activations    CUDA: the peak of a step of the largest batch, which is run to measure it
    CUDA graphs    what capturing the largest two sizes of each kind takes, the others counted like the smaller of them
    others         programs that use the device, too, and the CUDA driver's own
    KV cache       the rest of what we may use

Graphs cannot be captured before the KV cache is there, since they hold its address, and to capture all of them twice
would take twice as long. But they share one pool: the first one fills it, and each further one adds its own nodes only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fathom.worker.graph_buckets import Bucket, GraphBuckets

GIB = 2**30


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of a device. usable: how much of `total` the engine may have taken in the end, all of these included."""

    total: int
    usable: int
    others: int
    weights: int
    activations: int = 0
    graphs: int = 0

    @property
    def kv_cache(self) -> int:
        """What is left for the KV cache; 0 if the others take more than there is."""
        return max(0, self.usable - self.others - self.weights - self.activations - self.graphs)

    def table(self, kv_cache: int) -> list[str]:
        """A line for each part, once the KV cache takes so many bytes."""
        free = self.total - self.others - self.weights - self.activations - self.graphs - kv_cache
        parts = {
            "weights": self.weights,
            "activations": self.activations,
            "CUDA graphs": self.graphs,
            "KV cache": kv_cache,
            "others": self.others,
            "free": free,
            "in all": self.total,
        }
        return [f"  {name:<13} {size / GIB:8.2f} GiB" for name, size in parts.items() if size]


def measure_graphs(
    buckets: GraphBuckets, capture: Callable[[list[Bucket]], None], memory_taken: Callable[[], int]
) -> int:
    """About how many bytes all graphs will take, from capturing up to two of each kind.

    Args:
        capture: captures some.
        memory_taken: bytes of the device that are in use.
    """
    total = 0
    for bucket, share in _samples(buckets):
        before = memory_taken()
        capture([bucket])
        total += max(0, memory_taken() - before) * share
    return total


def _samples(buckets: GraphBuckets) -> list[tuple[Bucket, int]]:
    """The largest two buckets of each kind, largest first, and how many buckets each of them stands for."""
    samples: list[tuple[Bucket, int]] = []
    for kind in ("full", "piecewise"):
        of_kind = [bucket for bucket in buckets.largest_first() if bucket.kind == kind]
        samples += zip(of_kind[:2], (1, len(of_kind) - 1), strict=False)
    return sorted(samples, key=lambda sample: sample[0].size, reverse=True)
