"""The rows of a step natively: one object that knows the arrays' addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fathom.kernels.native import cpu

if TYPE_CHECKING:
    from fathom.kernels.step_rows import BatchRows, StepArrays


class StepRows:
    """See the package's docstring for shapes and rules."""

    def __init__(self, batch: BatchRows, step: StepArrays, block_size: int) -> None:
        self._arrays = (batch, step)  # they live as long as their addresses are in use
        native = cpu.make_step_rows(
            *map(_address, batch[:6]), _addresses(batch.block_tables),
            *map(_address, step[:7]), _addresses(step.block_tables), _addresses(step.slot_mappings),
            batch.token_ids.shape[1], batch.block_tables[0].shape[1], step.block_tables[0].shape[1], block_size,
        )  # fmt: skip
        self.flatten = native.flatten
        self.uniforms = native.uniforms
        self.append = native.append


def _addresses(arrays: list[np.ndarray]) -> list[int]:
    return [_address(array) for array in arrays]


def _address(array: np.ndarray) -> int:
    assert array.flags.c_contiguous
    return array.ctypes.data
