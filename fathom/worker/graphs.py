"""CUDAGraphs: steps captured at boot, for some batch sizes, and replayed without going through the model's Python.

A decode step's work is the same from step to step, so all of it is one graph for each number of rows ("full"). Where a
batch is mixed only attention differs, in what it is launched for. Everything between two attentions is then a graph of
its own ("piecewise"), and one prompt's token among the decodes does not cost a step its graphs:

    [ embedding .. q, k, v, cache ]  attention  [ output, mlp .. q, k, v, cache ]  attention ... [ output, mlp, norm ]
      graph 0                        launched     graph 1                          launched        graph n

Models know nothing of it. A layer attends through its batch (`ForwardBatch.attend`), and while pieces are captured the
batch ends one there and begins the next.

What crosses from a graph to a launch or back lies in buffers of its own: queries, what they attended to, the hidden
states at the end, and those that another stage has sent. Each is as large as the largest bucket and serves all graphs
and layers, one after the other; a graph's other tensors are in the pool that all share. Rows and tokens that fill up a
bucket are at position 0 of the null block and see themselves only, so that all that they compute is defined, and
nobody reads it.

The head is not in a graph: its launches are made while the graph runs, and its logits would be a bucket's largest
tensor by far. Nor is what stages send each other: a stage's graphs begin behind its receiving and end before its
sending. Sums over the ranks of a stage are in the graphs, as NCCL can be captured once its communicator has been used,
which it is when a step is run before it is captured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from tqdm import tqdm

from fathom.worker.graph_buckets import Bucket, GraphBuckets
from fathom.worker.graph_capture import GraphCapture

if TYPE_CHECKING:
    from fathom.layers.attention import PagedAttention
    from fathom.models.decoder import CausalLM
    from fathom.worker.forward_batch import Attend, ForwardBatch, StepInputs
    from fathom.worker.replay import PreparedStep


class _Piece(NamedTuple):
    """A graph, and the attention that is launched behind it; None behind the last one, or if it is in the graph."""

    replay: Callable[[], None]
    attention: PagedAttention | None


class CUDAGraphs:
    """The captured steps of one model runner; a Replay (worker/replay.py).

    The tensors of all steps' inputs, KV caches included, must be at the same addresses.
    """

    def __init__(self, model: CausalLM, capture: GraphCapture, buckets: GraphBuckets) -> None:
        self._model = model
        self._capture = capture
        self._buckets = buckets
        self._pieces: dict[Bucket, list[_Piece]] = {}
        self._entering = _SharedBuffer()
        self._hidden = _SharedBuffer()
        self._query = _SharedBuffer()
        self._attended = _SharedBuffer()

    def cover(self, num_reqs: int, num_tokens: int, num_complete: int) -> bool:
        bucket = self._buckets.choose(num_reqs, num_tokens)
        return bucket is not None and bucket in self._pieces

    @torch.inference_mode()
    def run(self, num_reqs: int, num_tokens: int, num_complete: int, step: PreparedStep) -> torch.Tensor:
        bucket = self._buckets.choose(num_reqs, num_tokens)
        assert bucket is not None, "a step that is not covered"
        stage = self._model.stage
        if not stage.is_first:
            self._entering.keep(stage.receive(num_tokens))
        batch = step.padded_inputs(bucket.size if bucket.kind == "full" else num_reqs, bucket.size).batch
        for replay, attention in self._pieces[bucket]:
            replay()
            if attention is not None:
                attended = attention.attend(self._query.rows(num_tokens), batch)
                self._attended.rows(num_tokens).copy_(attended)
        hidden = self._hidden.rows(num_tokens)
        if stage.is_last:
            return step.logits(hidden)
        stage.send(hidden.clone())  # the next step's may come before this one has been read
        return hidden[:0]

    def capture(self, buckets: list[Bucket], padding: PreparedStep, show_progress: bool = False) -> None:
        """Capture the graphs of these buckets, none larger than the first one ever; all of them take seconds.

        Args:
            padding: a step without requests.
        """
        with self._capture.session():
            for bucket in tqdm(buckets, desc="Capturing CUDA graphs", unit="size", disable=not show_progress):
                self._pieces[bucket] = self._capture_one(bucket, padding)

    @torch.inference_mode()
    def _capture_one(self, bucket: Bucket, padding: PreparedStep) -> list[_Piece]:
        """The step is run once before: kernels are compiled, and libraries set up, on first use, not in a capture."""
        pieces: list[_Piece] = []

        def break_off(layer: PagedAttention, query: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
            attended = self._leave_attention_out(layer, query, batch)
            pieces.append(_Piece(self._capture.end(), layer))
            self._capture.begin()
            return attended

        is_full = bucket.kind == "full"
        step = padding.padded_inputs(bucket.size if is_full else 0, bucket.size)
        stage = self._model.stage
        entering = step.input_ids if stage.is_first else self._entering.like(stage.empty(bucket.size))
        self._forward(entering, step if is_full else _attending_by(step, self._leave_attention_out))
        self._capture.begin()
        self._forward(entering, step if is_full else _attending_by(step, break_off))
        pieces.append(_Piece(self._capture.end(), None))
        return pieces

    def _forward(self, entering: torch.Tensor, step: StepInputs) -> None:
        """All of this stage's layers, their result put to where `run` reads it."""
        self._hidden.keep(self._model.run_layers(entering, step.positions, step.batch))

    def _leave_attention_out(self, layer: PagedAttention, query: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """Put the queries to where attention will read them; returns where it will write."""
        self._query.keep(query)
        return self._attended.like(query)


class _SharedBuffer:
    """A tensor of the largest bucket's rows, of which smaller ones use the first. Made, of zeros, when first used."""

    def __init__(self) -> None:
        self._tensor: torch.Tensor | None = None

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """As many of its rows as the tensor has."""
        if self._tensor is None:
            self._tensor = torch.zeros_like(tensor, memory_format=torch.contiguous_format)
        rows = self._tensor[: len(tensor)]
        assert rows.shape == tensor.shape, "the largest bucket is captured first"
        return rows

    def keep(self, tensor: torch.Tensor) -> None:
        self.like(tensor).copy_(tensor)

    def rows(self, count: int) -> torch.Tensor:
        assert self._tensor is not None, "nothing was captured"
        return self._tensor[:count]


def _attending_by(step: StepInputs, attend: Attend) -> StepInputs:
    """The step, with another way to attend."""
    return dataclasses.replace(step, batch=dataclasses.replace(step.batch, attend=attend))
