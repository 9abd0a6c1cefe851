"""RecordedSteps: steps on the CPU, recorded when the engine starts and then replayed by one native call each.

A step always makes the same kernel calls. What differs is what lies in the inputs, and how many tokens and requests
there are. The inputs are always in the same place (worker/input_buffers.py), and so are a replayed step's intermediate
tensors (worker/arena.py), of which a small step uses the first rows. That leaves two numbers. To know which arguments
they are, two made-up steps of different sizes are recorded:

    rms_norm(output, input, weight, 2, 576, 1e-5)      of 2 tokens
    rms_norm(output, input, weight, 4, 576, 1e-5)      of 4 tokens: the fourth argument is the number of tokens

Then any step is a replay:

    model(...)                              some 300 calls from Python, each of allocating, slicing and checking
    graph.replay(num_tokens, num_requests)  the same kernels back to back

This is right only if nothing but native kernels touches the data, and the two steps differ in nothing but these
numbers. Both are watched: a model that also runs an operation of torch's is never replayed.

The head is recorded apart, for decodes, which need the logits of all their tokens. Other steps choose among theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fathom.kernels import native
from fathom.models.decoder import CausalLM
from fathom.worker.arena import Arena, Place
from fathom.worker.replay import PreparedStep

logger = logging.getLogger(__name__)

MAX_TOKENS = 1024
"""Larger steps are long enough for what Python does between kernels not to show, and their tensors are large."""


class _Size(NamedTuple):
    num_tokens: int
    num_requests: int


class RecordedSteps:
    """The recorded steps of one model runner; a Replay (worker/replay.py).

    Args:
        max_num_seqs: the most requests of a step.
        max_num_batched_tokens: the most tokens of a step.

    The tensors of all steps' inputs, KV caches included, must be at the same addresses, whatever the sizes.
    """

    def __init__(self, model: CausalLM, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self._model = model
        self._made_up = [_Size(2, 1), _Size(4, min(2, max_num_seqs))]
        self._can_be_made = max_num_batched_tokens >= 4
        self._max_tokens = min(max_num_batched_tokens, MAX_TOKENS)
        self._body = _RecordedCalls(Arena(self._max_tokens))
        self._head = _RecordedCalls(Arena(max(max_num_seqs, 4)))

    @torch.inference_mode()
    def record(self, padding: PreparedStep) -> None:
        """Run and record the made-up steps.

        Args:
            padding: a step without requests.
        """
        if not self._can_be_made:
            return
        self._body.record(self._made_up, lambda size: self._hidden(size, padding))
        if self._body.is_complete:
            self._head.record(self._made_up, lambda size: self._model.compute_logits(self._body.result(size)))

    def cover(self, num_reqs: int, num_tokens: int, num_complete: int) -> bool:
        """Whether a step can be replayed: any that is not too large."""
        return self._body.is_complete and num_tokens <= self._max_tokens

    def run(self, num_reqs: int, num_tokens: int, num_complete: int, step: PreparedStep) -> torch.Tensor:
        """Its inputs are not asked for: a replay knows where they are."""
        size = _Size(num_tokens, num_reqs)
        hidden = self._body.replay(size)
        if num_complete == num_tokens and self._head.is_complete:
            return self._head.replay(size)
        with torch.inference_mode():
            return step.logits(hidden)

    def _hidden(self, size: _Size, padding: PreparedStep) -> torch.Tensor:
        inputs = padding.padded_inputs(size.num_requests, size.num_tokens)
        return self._model(inputs.input_ids, inputs.positions, inputs.batch)


class _RecordedCalls:
    """The kernel calls that compute one tensor, of a step's tokens, for steps of any size; none before `record`.

    Args:
        arena: for that tensor and what it is made from.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._graph: Any = None
        self._place = Place(0, 0, torch.Size(), torch.float32)
        self._result = torch.empty(0)

    @property
    def is_complete(self) -> bool:
        return self._graph is not None

    def record(self, sizes: list[_Size], compute: Callable[[_Size], torch.Tensor]) -> None:
        """Keep the calls that `compute` makes, unless they cannot be replayed."""
        graphs = []
        for size in sizes:
            watch = _Watch(self._arena)
            native.cpu.start_recording(*size)
            try:
                with watch:
                    result = compute(size)
            finally:
                graphs.append(native.cpu.stop_recording())
            if watch.foreign is not None:
                logger.debug("steps are not replayed: the model runs %s", watch.foreign)
                return
            self._place = self._arena.place_of(result)
            del result  # the next one is to get its memory
        if graphs[0].generalise(graphs[1]):
            self._graph = graphs[0]
            logger.debug("recorded %d kernel calls", len(self._graph))
        else:
            logger.debug("steps are not replayed: their calls differ in more than numbers of tokens and requests")

    def replay(self, size: _Size) -> torch.Tensor:
        """The tensor of a step of this size, which the next replay may overwrite."""
        self._graph.replay(*size)
        if len(self._result) != size.num_tokens:
            self._result = self.result(size)
        return self._result

    def result(self, size: _Size) -> torch.Tensor:
        """What the last run has computed, if it was one of this size."""
        shape = torch.Size([size.num_tokens, *self._place.shape[1:]])
        return self._arena.tensor_at(self._place._replace(shape=shape))


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
