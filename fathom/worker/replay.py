"""Replay: steps that were recorded once and are run again without going through the model's Python.

`RecordedSteps` does it for the CPU, `CUDAGraphs` for GPUs; the runner asks either in each step, and calls the model
itself where they do not cover it.
"""

from __future__ import annotations

from typing import Protocol

import torch

from fathom.worker.forward_batch import StepInputs


class PreparedStep(Protocol):
    """A step whose inputs have been written, on the host."""

    def padded_inputs(self, rows: int, tokens: int) -> StepInputs:
        """Its inputs, padded to so many requests and tokens, always in the same place."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [num_tokens, hidden_size], of its tokens -> [num_complete, vocab_size] float32."""


class Replay(Protocol):
    """Steps that can be run without calling the model."""

    def cover(self, num_reqs: int, num_tokens: int, num_complete: int) -> bool:
        """Whether a step of these sizes can be; num_complete: requests whose last token it computes."""

    def run(self, num_reqs: int, num_tokens: int, num_complete: int, step: PreparedStep) -> torch.Tensor:
        """Run such a step; returns the logits [num_complete, vocab_size], which the next call may overwrite.

        A stage that is not the last has none, and sends its hidden states on.
        """


class NoReplay:
    """Every step calls the model."""

    def cover(self, num_reqs: int, num_tokens: int, num_complete: int) -> bool:
        return False

    def run(self, num_reqs: int, num_tokens: int, num_complete: int, step: PreparedStep) -> torch.Tensor:
        raise AssertionError("it covers nothing")
