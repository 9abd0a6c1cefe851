"""Which steps are captured as CUDA graphs, and the batch sizes that there are graphs for."""

from __future__ import annotations

from fathom.config import EngineConfig
from fathom.errors import ConfigError

DEVICES = ("cuda",)
"""Devices that can capture graphs."""
DEFAULT_LARGEST = 512
"""Tokens. Larger batches compute for longer than their launches take, so that a graph gains nothing."""


def resolve_graphs(
    config: EngineConfig, device: str, max_num_seqs: int, budget: int, reasons: list[str]
) -> tuple[str, tuple[int, ...]]:
    """(cudagraph_mode, cudagraph_capture_sizes in ascending order), the second empty where nothing is captured.

    Raises:
        ConfigError: a mode that the device or another option rules out.
    """
    wanted = config.runtime.cudagraph_mode
    obstacle = _obstacle(config, device)
    if obstacle is None:
        mode = wanted or "FULL_AND_PIECEWISE"
        return mode, () if mode == "NONE" else _sizes(config, max_num_seqs, budget)
    if wanted not in (None, "NONE"):
        raise ConfigError(
            f"cudagraph_mode={wanted}, but {obstacle}.",
            parameter="cudagraph_mode",
            value=wanted,
            hint="Leave cudagraph_mode out.",
        )
    if wanted is None and device in DEVICES:
        reasons.append(f"cudagraph_mode=NONE: {obstacle}")
    return "NONE", ()


def _obstacle(config: EngineConfig, device: str) -> str | None:
    """Why no graphs can be captured; None if they can."""
    if device not in DEVICES:
        return f"device={device} has none"
    if config.runtime.enforce_eager:
        return "enforce_eager runs every step call by call"
    return None


def _sizes(config: EngineConfig, max_num_seqs: int, budget: int) -> tuple[int, ...]:
    """Those that were asked for or the default ones; none larger than a step can be."""
    sizes, largest = config.runtime.cudagraph_capture_sizes, config.runtime.max_cudagraph_capture_size
    if sizes is None:
        return default_sizes(min(largest or min(2 * max_num_seqs, DEFAULT_LARGEST), budget))
    return tuple(sorted({min(size, budget) for size in sizes if largest is None or size <= largest}))


def default_sizes(largest: int) -> tuple[int, ...]:
    """1, 2, 4, then every 8 up to 256, then every 16, up to `largest`, which is always among them."""
    steps = (1, 2, 4, *range(8, 257, 8), *range(272, largest, 16))
    return (*(size for size in steps if size < largest), largest)
