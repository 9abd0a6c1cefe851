"""KV groups: layers that follow the same rule share a block table, and the pool is cut to fit them all.

How many blocks a sequence needs, how many fit in the memory, and how long a sequence may get, all follow from
the groups. `kv_cache_spec` draws the layout.
"""

from __future__ import annotations

from math import ceil, gcd

from fathom.dist.shares import even_cut
from fathom.errors import ConfigError
from fathom.kv_cache_spec import KVCacheConfig, KVCacheGroup, LayerKVSpec, pages_of_layers


def group_layers(specs: list[LayerKVSpec]) -> tuple[KVCacheGroup, ...]:
    """Sort layers by their window into groups of equal size, so that a block of any group is the same page.

    The size is the greatest that divides every kind's number of layers, as long as that is not too small to be
    worth its bookkeeping; else the smallest kind's number, and a last group may be short.
    """
    by_window: dict[int | None, list[int]] = {}
    for layer, spec in enumerate(specs):
        by_window.setdefault(spec.window, []).append(layer)
    counts = [len(layers) for layers in by_window.values()]
    size = gcd(*counts)
    if size * 2 < min(counts):
        size = min(counts)
    return tuple(
        KVCacheGroup(layers=tuple(layers[start : start + size]), window=window)
        for window, layers in by_window.items()
        for start in range(0, len(layers), size)
    )


def blocks_per_sequence(
    groups: tuple[KVCacheGroup, ...], block_size: int, length: int, max_num_batched_tokens: int
) -> int:
    """Most blocks that one sequence of `length` tokens holds at any time, over all groups."""
    total = 0
    for group in groups:
        held = length
        if group.window is not None:
            # The window's keys, the step's new tokens, and one block that both ends may cut.
            held = min(length, group.window - 1 + max_num_batched_tokens + block_size)
        total += ceil(held / block_size)
    return total


def longest_sequence(
    groups: tuple[KVCacheGroup, ...],
    block_size: int,
    num_blocks: int,
    max_num_batched_tokens: int,
    limit: int,
) -> int:
    """The longest sequence, up to `limit`, that fits alone in a pool of `num_blocks`; 0 if none does."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if blocks_per_sequence(groups, block_size, middle, max_num_batched_tokens) <= num_blocks - 1:
            low = middle
        else:
            high = middle - 1
    return low


def make_kv_cache_config(
    specs: list[LayerKVSpec],
    block_size: int,
    available_bytes: int,
    max_model_len: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    num_stages: int = 1,
) -> KVCacheConfig:
    """Cut `available_bytes` into blocks; no more of them than max_num_seqs full-length sequences can use.

    With several pipeline stages that is what each has for its own layers; the one with the most pages sets the measure.

    Raises:
        ConfigError: layers of different shapes (which no supported model has), or not even one block fits.
    """
    page_bytes = {spec.page_bytes(block_size) for spec in specs}
    if len(page_bytes) != 1:
        raise ConfigError(f"layers with KV pages of different sizes ({sorted(page_bytes)} bytes) are not supported.")
    groups = group_layers(specs)
    layers_per_group = max(len(group.layers) for group in groups)
    stages = [even_cut(len(specs), stage, num_stages) for stage in range(num_stages)]
    pages = max(pages_of_layers(groups, range(stage.start, stage.stop)) for stage in stages)
    bytes_per_block = pages * page_bytes.pop()
    useful = 1 + max_num_seqs * blocks_per_sequence(groups, block_size, max_model_len, max_num_batched_tokens)
    num_blocks = min(useful, available_bytes // bytes_per_block)
    if longest_sequence(groups, block_size, num_blocks, max_num_batched_tokens, 2) < 2:
        smallest = (1 + blocks_per_sequence(groups, block_size, 2, max_num_batched_tokens)) * bytes_per_block
        raise ConfigError(
            f"{available_bytes:,} bytes of KV cache cannot hold a sequence of 2 tokens.",
            parameter="kv_cache_memory_bytes",
            value=available_bytes,
            hint=f"It takes {smallest:,} bytes at the least.",
        )
    return KVCacheConfig(
        num_blocks=num_blocks,
        block_size=block_size,
        layers_per_group=layers_per_group,
        groups=groups,
        bytes_per_block=bytes_per_block,
    )
