"""The least time a workload could take on this machine, by the two limits that worker/limits.py measures.

    a prompt:                       operations / peak
    one token of each of n requests: max((weight bytes + n KV caches) / bandwidth, n * operations / peak)

A matrix of a x b takes 2ab operations a token; attention 4 * heads * head_dim in each layer for each position that
it looks at, which a sliding window bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fathom.frontend.engine import LLMEngine
from fathom.model_config.values import ModelConfig


@dataclass(frozen=True)
class Roofline:
    """bandwidth: bytes a second. peak: operations a second. The rest is of one token.

    layer_operations, head_operations: the products with all layers' matrices, and with the head's. kv_bytes,
    attention_operations: for one position in one layer.
    """

    bandwidth: float
    peak: float
    peak_kind: str
    weight_bytes: int
    layer_operations: int
    head_operations: int
    kv_bytes: int
    attention_operations: int
    layer_windows: tuple[int | None, ...]

    def prompt_seconds(self, length: int) -> float:
        """The least for one prompt; only its last token needs the head."""
        positions = sum(self._positions(context) for context in (length / 4, 3 * length / 4)) / 2  # on average
        operations = length * (self.layer_operations + positions * self.attention_operations)
        return (operations + self.head_operations) / self.peak

    def step_seconds(self, context: float, num_requests: float = 1) -> float:
        """The least for one token of each of some requests, with `context` tokens each."""
        positions = self._positions(context)
        num_bytes = self.weight_bytes + num_requests * positions * self.kv_bytes
        operations = self.layer_operations + self.head_operations + positions * self.attention_operations
        return max(num_bytes / self.bandwidth, num_requests * operations / self.peak)

    def _positions(self, context: float) -> float:
        """Positions that a token looks at, over all layers."""
        return sum(context if window is None else min(context, window) for window in self.layer_windows)

    def lines(self) -> list[str]:
        """The limits in words."""
        return [
            f"this machine reads {self.bandwidth / 1e9:.1f} GB/s (torch, sum of 256 MiB) and multiplies at "
            f"{self.peak / 1e9:.0f} G{self.peak_kind} operations/s (torch, matrices of 2,048)",
            f"one token reads {self.weight_bytes / 1e6:.1f} MB of weights and takes "
            f"{(self.layer_operations + self.head_operations) / 1e9:.2f} G operations, attention apart",
        ]


def measure_roofline(engine: LLMEngine) -> Roofline:
    """Measures the machine now, in the engine's workers; best when the benchmark is over, so that it disturbs nothing.

    Several workers measure at once, and what they measure, hold and read adds up. Quantised weights are multiplied in
    int8 where torch has a product for it to compare with, others in float32.
    """
    described = _summed(engine.collective_rpc("describe"))
    limits = _summed(engine.collective_rpc("measure_limits"))
    in_int8 = described["quantised"] and engine.config.model.activations == "int8" and limits["int8_peak"] > 0
    model = engine.model_config
    return Roofline(
        bandwidth=limits["read_bandwidth"],
        peak=limits["int8_peak"] if in_int8 else limits["float32_peak"],
        peak_kind="int8" if in_int8 else "float32",
        weight_bytes=described["weight_bytes"],
        layer_operations=2 * model.num_layers * _num_layer_weights(model),
        head_operations=2 * model.hidden_size * model.vocab_size,
        kv_bytes=described["kv_bytes_per_position"] // model.num_layers,
        attention_operations=4 * model.num_heads * model.head_dim,
        layer_windows=model.layer_windows,
    )


def _summed(of_workers: list[dict[str, Any]]) -> dict[str, Any]:
    """The sums of what the workers say by number."""
    first = of_workers[0]
    return {name: sum(one[name] for one in of_workers) for name in first if not isinstance(first[name], str)}


def _num_layer_weights(model: ModelConfig) -> int:
    """Elements of one layer's matrices."""
    attention = model.hidden_size * model.head_dim * 2 * (model.num_heads + model.num_kv_heads)
    return attention + 3 * model.hidden_size * model.intermediate_size
