"""PagedRun: drives a model with hand-made batches, as the model runner will, in a few lines.

Blocks are dealt from a shuffled pool, one table per distinct window. A window's table forgets (sets to the
null block) what has slid out of it, and the null block is poisoned, so that reading it shows as NaN.
"""

from __future__ import annotations

import random

import torch

from fathom.kv_cache_spec import KVDtype
from fathom.models.decoder import CausalLM
from fathom.worker.forward_batch import BlockTables, ForwardBatch
from tests.kernels.kv_pages import nan_cache

NUM_BLOCKS = 400


class PagedRun:
    """A model, its KV cache and the requests that it has seen so far."""

    def __init__(self, model: CausalLM, block_size: int = 4, seed: int = 0, kv_dtype: KVDtype = "float32"):
        self.model, self.block_size = model, block_size
        specs = model.kv_specs(kv_dtype)
        self.windows = [spec.window for spec in specs]
        self.caches = [
            nan_cache(NUM_BLOCKS, block_size, spec.num_kv_heads, spec.head_dim, spec.dtype) for spec in specs
        ]
        self.pool = list(range(1, NUM_BLOCKS))
        random.Random(seed).shuffle(self.pool)
        self.blocks: dict[tuple[str, int | None], list[int]] = {}
        self.lengths: dict[str, int] = {}

    @torch.inference_mode()
    def step(self, tokens: dict[str, list[int]]) -> dict[str, torch.Tensor]:
        """Run each request's new tokens; its logits [new tokens, vocab], by request, if this is the last stage."""
        starts, positions, seq_lens = [0], [], []
        for request, new in tokens.items():
            begin = self.lengths.get(request, 0)
            self.lengths[request] = begin + len(new)
            positions += range(begin, begin + len(new))
            starts.append(starts[-1] + len(new))
            seq_lens.append(begin + len(new))
        tables = {window: self._tables(window, tokens) for window in set(self.windows)}
        batch = ForwardBatch(
            torch.tensor(starts, dtype=torch.int32),
            torch.tensor(seq_lens, dtype=torch.int32),
            self.caches,
            [tables[window] for window in self.windows],
        )
        ids = torch.tensor([token for new in tokens.values() for token in new])
        hidden = self.model(ids, torch.tensor(positions), batch)
        if not self.model.stage.is_last:
            return {}
        logits = self.model.compute_logits(hidden)
        return {r: logits[starts[i] : starts[i + 1]] for i, r in enumerate(tokens)}

    def _tables(self, window: int | None, tokens: dict[str, list[int]]) -> BlockTables:
        rows, slots = [], []
        for request, new in tokens.items():
            length = self.lengths[request]
            blocks = self.blocks.setdefault((request, window), [])
            while len(blocks) * self.block_size < length:
                blocks.append(self.pool.pop())
            first = length - len(new)
            if window is not None:
                gone = max(0, first - window + 1) // self.block_size
                blocks[:gone] = [0] * gone
            slots += [
                blocks[p // self.block_size] * self.block_size + p % self.block_size for p in range(first, length)
            ]
            rows.append(blocks)
        width = max(map(len, rows))
        table = [row + [0] * (width - len(row)) for row in rows]
        return BlockTables(torch.tensor(table, dtype=torch.int32), torch.tensor(slots))
