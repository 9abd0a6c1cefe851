"""InputBuffers: the arrays that a step's inputs are written to, at the same addresses in every step.

Nothing is allocated for a step, and a recorded step finds its inputs where it read them when it was recorded. On a GPU
there are pinned arrays on the host and others on the device, and a step's part of them is copied without waiting. A
copy may then be made long after it was asked for, behind the steps before; so the host has two sets of arrays, takes
turns, and writes to one again only when the step whose inputs it held has begun.
"""

from __future__ import annotations

import numpy as np
import torch

from fathom.kernels.step_rows import StepArrays
from fathom.worker.device import Device, Mark, Passed
from fathom.worker.forward_batch import BlockTables


class InputArray:
    """hosts: what to write to, one for each set. `on_device` gives the device's view of a part of one."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: Device, num_sets: int) -> None:
        self._device = device
        pinned = device.torch_device.type == "cuda"
        self._sources = [torch.zeros(shape, dtype=dtype, pin_memory=pinned) for _ in range(num_sets)]
        self._target = self._sources[0]
        if num_sets > 1:
            self._target = torch.zeros(shape, dtype=dtype, device=device.torch_device)
        self.hosts: list[np.ndarray] = [source.numpy() for source in self._sources]

    def on_device(self, turn: int, rows: int) -> torch.Tensor:
        """The first `rows` rows, as they are written now in a set."""
        view = self._target[:rows]
        if self._target is not self._sources[turn]:
            self._device.copy_to_device(view, self._sources[turn][:rows])
        return view


class InputBuffers:
    """Room for the inputs of the largest step.

    input_ids, positions: [max_tokens] int64. query_start_loc: [max_requests + 1] int32. seq_lens: [max_requests] int32.
    block_tables, slot_mappings: per KV group [max_requests, max_blocks] int32, [max_tokens] int64.
    steps: per set, all of them as the host writes them, and, one for all sets, what the host alone needs.
    turn: the set that is written to.
    """

    def __init__(self, max_tokens: int, max_requests: int, max_blocks: int, num_groups: int, device: Device) -> None:
        self._device = device
        self._num_sets = 2 if device.runs_behind else 1
        self.input_ids = self._array((max_tokens,), torch.int64)
        self.positions = self._array((max_tokens,), torch.int64)
        self.query_start_loc = self._array((max_requests + 1,), torch.int32)
        self.seq_lens = self._array((max_requests,), torch.int32)
        self.block_tables = [self._array((max_requests, max_blocks), torch.int32) for _ in range(num_groups)]
        self.slot_mappings = [self._array((max_tokens,), torch.int64) for _ in range(num_groups)]
        rows, counts = np.zeros(max_requests, np.int64), np.zeros(max_requests, np.int64)
        complete = np.zeros(max_requests, np.bool_)
        self.steps = [
            StepArrays(
                rows=rows,
                counts=counts,
                complete=complete,
                input_ids=self.input_ids.hosts[turn],
                positions=self.positions.hosts[turn],
                query_start_loc=self.query_start_loc.hosts[turn],
                seq_lens=self.seq_lens.hosts[turn],
                block_tables=[table.hosts[turn] for table in self.block_tables],
                slot_mappings=[slots.hosts[turn] for slots in self.slot_mappings],
            )
            for turn in range(self._num_sets)
        ]
        self.turn = 0
        self._read: list[Mark] = [Passed() for _ in self.steps]

    @property
    def step(self) -> StepArrays:
        """The set that is written to."""
        return self.steps[self.turn]

    def begin_step(self) -> None:
        """Take the next set, once the device has read what was last written to it; where there is more than one."""
        self.turn = (self.turn + 1) % self._num_sets
        self._read[self.turn].synchronize()

    def end_step(self) -> None:
        """The set has been given to the device."""
        self._read[self.turn] = self._device.mark()

    def pad(self, num_reqs: int, num_tokens: int, rows: int, tokens: int) -> None:
        """Make the rows and tokens behind a step's own harmless, up to so many.

        A row's token is its only one; a token is at position 0, and its key and value are in the null block.
        """
        step = self.step
        step.input_ids[num_tokens:tokens] = 0
        step.positions[num_tokens:tokens] = 0
        for slots in step.slot_mappings:
            slots[num_tokens:tokens] = 0
        if rows > num_reqs:
            step.query_start_loc[num_reqs : rows + 1] = np.arange(num_tokens, num_tokens + rows - num_reqs + 1)
            step.seq_lens[num_reqs:rows] = 1
            for table in step.block_tables:
                table[num_reqs:rows, 0] = 0

    def tables_on_device(self, num_reqs: int, num_tokens: int) -> list[BlockTables]:
        """Per KV group: each request's blocks, in a table as wide as it can get, and the slot of each new token."""
        return [
            BlockTables(table.on_device(self.turn, num_reqs), slots.on_device(self.turn, num_tokens))
            for table, slots in zip(self.block_tables, self.slot_mappings, strict=True)
        ]

    def _array(self, shape: tuple[int, ...], dtype: torch.dtype) -> InputArray:
        return InputArray(shape, dtype, self._device, self._num_sets)
