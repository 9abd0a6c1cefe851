"""A batch of requests whose keys and values lie in shuffled blocks of a cache that is NaN everywhere else."""

from __future__ import annotations

from typing import Any

import torch

from fathom.kernels.rotate_and_store import ref
from fathom.kv_cache_spec import KVDtype
from tests.kernels.kv_pages import nan_cache

# (seq_len, query_len): decodes, one past two ranges of keys; a whole prompt; chunks after a cached prefix; an idle row.
MIXED = [(1, 1), (13, 1), (7, 7), (29, 5), (9, 0), (131, 90), (75, 1)]
DECODES = [(seq_len, 1) for seq_len, _ in MIXED]


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


class Batch:
    """Its queries are random; `attend` gives any module's answer to them."""

    def __init__(
        self,
        requests: list[tuple[int, int]],
        heads: tuple[int, int],
        dim: int,
        block_size: int,
        dtype: KVDtype,
        keys_by_token: bool = False,
    ):
        num_blocks = sum(-(-seq_len // block_size) for seq_len, _ in requests) + 1
        pool = torch.randperm(num_blocks - 1, generator=torch.Generator().manual_seed(0)).add(1).tolist()
        self.cache = nan_cache(num_blocks, block_size, heads[1], dim, dtype, keys_by_token)
        self.rows = [[pool.pop() for _ in range(-(-seq_len // block_size))] for seq_len, _ in requests]
        for number, (seq_len, _) in enumerate(requests):
            slots = [self.rows[number][p // block_size] * block_size + p % block_size for p in range(seq_len)]
            kv = randn(2, seq_len, heads[1], dim, seed=number)
            ref.store(kv[0], kv[1], torch.tensor(slots), self.cache)
        self.lengths = torch.tensor([seq_len for seq_len, _ in requests], dtype=torch.int32)
        self.starts = torch.tensor([0, *(query_len for _, query_len in requests)]).cumsum(0).int()
        self.query = randn(int(self.starts[-1]), heads[0], dim)

    def attend(self, module: Any, dtype: torch.dtype = torch.float32, **options: Any) -> torch.Tensor:
        width = max(map(len, self.rows)) + 1
        table = torch.tensor([row + [0] * (width - len(row)) for row in self.rows], dtype=torch.int32)
        query = self.query.to(dtype)
        return module.paged_attention(query, self.cache, table, self.starts, self.lengths, 0.2, **options)
