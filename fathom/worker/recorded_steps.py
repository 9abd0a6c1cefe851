"""RecordedSteps: decode steps on the CPU, recorded once for each number of rows and then replayed by one native call.

A decode step of n rows always makes the same kernel calls with the same sizes; only what lies in the inputs
differs. Those are always in the same place (worker/input_buffers.py); the first step of n rows runs with its
intermediate tensors in memory that stays where it is, too, while the native kernels note down their calls. Every later
step of n rows is a replay:

    model(...)     some 300 calls from Python, each a few microseconds of allocating, slicing and checking
    graph.replay() the same kernels back to back

This is right only if nothing but native kernels touches the data, which is watched while recording: a model that
also runs an operation of torch's is never replayed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fathom.kernels import native
from fathom.models.decoder import CausalLM
from fathom.worker.arena import Arena, Place
from fathom.worker.forward_batch import StepInputs
from fathom.worker.replay import PreparedStep

logger = logging.getLogger(__name__)

MAX_ROWS = 64
"""Larger steps are long enough for what Python does between kernels not to show."""


@dataclass(frozen=True, slots=True)
class _RecordedStep:
    """A graph, and where it leaves its logits."""

    graph: Any
    logits: Place


class RecordedSteps:
    """The recorded steps of one model runner; a Replay (worker/replay.py).

    Args:
        max_num_seqs: the most rows of a step.

    The tensors of all steps' inputs, KV caches included, must be at the same addresses, whatever the number of rows.
    """

    def __init__(self, model: CausalLM, max_num_seqs: int) -> None:
        self._model = model
        self._max_rows = min(max_num_seqs, MAX_ROWS)
        self._arena = Arena(self._max_rows)
        self._recorded: dict[int, _RecordedStep] = {}
        self._last_rows, self._last_logits = 0, torch.empty(0)
        self._usable = True

    def cover(self, num_reqs: int, num_tokens: int, num_complete: int) -> bool:
        """Whether a step can be replayed: the last token of each request, and not too many of them."""
        return self._usable and num_tokens == num_reqs == num_complete and num_reqs <= self._max_rows

    def run(self, num_reqs: int, num_tokens: int, step: PreparedStep) -> torch.Tensor:
        """Its inputs are asked for only if it has to be recorded: a replay knows where they are."""
        recorded = self._recorded.get(num_reqs)
        if recorded is None:
            return self._record(step.padded_inputs(num_reqs, num_tokens), num_reqs)
        recorded.graph.replay()
        if self._last_rows != num_reqs:
            self._last_rows, self._last_logits = num_reqs, self._arena.tensor_at(recorded.logits)
        return self._last_logits

    @torch.inference_mode()
    def _record(self, inputs: StepInputs, rows: int) -> torch.Tensor:
        """Run the step and keep its graph."""
        self._last_rows, self._last_logits = 0, torch.empty(0)  # their buffer may be used
        watch = _Watch(self._arena)
        native.cpu.start_recording()
        try:
            with watch:
                logits = self._model.compute_logits(self._model(inputs.input_ids, inputs.positions, inputs.batch))
        finally:
            graph = native.cpu.stop_recording()
        if watch.foreign is None:
            self._recorded[rows] = _RecordedStep(graph, self._arena.place_of(logits))
            logger.debug("recorded a decode step of %d rows: %d kernel calls", rows, len(graph))
        else:
            self._usable = False
            logger.debug("decode steps are not replayed: the model runs %s", watch.foreign)
        return logits


class _Watch(TorchDispatchMode):
    """Puts new tensors into the arena, and notices an operation that computes: `foreign` is the first one's name."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self._arena = arena
        self.foreign: str | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; to say otherwise imports torch's compiler: seconds, and 100 MB."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in _ALLOCATIONS:
            return self._arena.empty_like(result)
        if func._schema.is_mutable or not _shares_storage(result, args[0]):
            self.foreign = self.foreign or str(func)
        return result


_ALLOCATIONS = (torch.ops.aten.empty, torch.ops.aten.new_empty, torch.ops.aten.empty_like)


def _shares_storage(result: Any, source: Any) -> bool:
    """Whether every tensor of the result is a view of the source."""
    tensors = result if isinstance(result, (tuple, list)) else (result,)
    return isinstance(source, torch.Tensor) and all(
        isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
        for tensor in tensors
    )
