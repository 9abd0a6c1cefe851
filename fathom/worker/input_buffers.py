"""InputBuffers: the arrays that a step's inputs are written to, at the same addresses in every step.

Nothing is allocated for a step, and a recorded step finds its inputs where it read them when it was recorded. On a GPU
each array is a pinned one of the host's and one of the device's, and a step's part of it is copied without waiting:
the host has the step's tokens, and so the copies are done, before it writes the next step's inputs.
"""

from __future__ import annotations

import numpy as np
import torch

from fathom.kernels.step_rows import StepArrays
from fathom.worker.forward_batch import BlockTables


class InputArray:
    """host: what to write to. `on_device` gives the device's view of a part of it."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self._source = torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")
        self._target = self._source if device.type == "cpu" else torch.zeros(shape, dtype=dtype, device=device)
        self.host: np.ndarray = self._source.numpy()

    def on_device(self, rows: int) -> torch.Tensor:
        """The first `rows` rows, as they are written now."""
        view = self._target[:rows]
        if self._target is not self._source:
            view.copy_(self._source[:rows], non_blocking=True)
        return view


class InputBuffers:
    """Room for the inputs of the largest step.

    input_ids, positions: [max_tokens] int64. query_start_loc: [max_requests + 1] int32. seq_lens: [max_requests] int32.
    block_tables, slot_mappings: per KV group [max_requests, max_blocks] int32, [max_tokens] int64.
    step: all of them as the host writes them, and what the host alone needs.
    """

    def __init__(
        self, max_tokens: int, max_requests: int, max_blocks: int, num_groups: int, device: torch.device
    ) -> None:
        self.input_ids = InputArray((max_tokens,), torch.int64, device)
        self.positions = InputArray((max_tokens,), torch.int64, device)
        self.query_start_loc = InputArray((max_requests + 1,), torch.int32, device)
        self.seq_lens = InputArray((max_requests,), torch.int32, device)
        self.block_tables = [InputArray((max_requests, max_blocks), torch.int32, device) for _ in range(num_groups)]
        self.slot_mappings = [InputArray((max_tokens,), torch.int64, device) for _ in range(num_groups)]
        self.step = StepArrays(
            rows=np.zeros(max_requests, np.int64),
            counts=np.zeros(max_requests, np.int64),
            complete=np.zeros(max_requests, np.bool_),
            input_ids=self.input_ids.host,
            positions=self.positions.host,
            query_start_loc=self.query_start_loc.host,
            seq_lens=self.seq_lens.host,
            block_tables=[table.host for table in self.block_tables],
            slot_mappings=[slots.host for slots in self.slot_mappings],
        )

    def tables_on_device(self, num_reqs: int, num_tokens: int, width: int) -> list[BlockTables]:
        """Per KV group: each request's first `width` blocks, and the slot of each new token."""
        return [
            BlockTables(table.on_device(num_reqs)[:, :width], slots.on_device(num_tokens))
            for table, slots in zip(self.block_tables, self.slot_mappings, strict=True)
        ]
