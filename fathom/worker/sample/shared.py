"""Sampling among the ranks of a stage: the first one chooses, the others learn what it has chosen.

All of them have the same logits, and could choose alike; but a custom logits processor need not be deterministic, and
a follower that has nothing to choose needs neither processors nor their state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch

from fathom.dist.group import Group
from fathom.kernels.sampling import NO_TOKEN
from fathom.worker.sample.interface import BatchUpdate
from fathom.worker.sample.sampler import Sampler
from fathom.worker.sample.samples import SamplerOutput, Samples


class TokenSource(Protocol):
    """Where a model runner's tokens come from: a Sampler, or another rank's.

    reads_output: whether the next sampling needs the values of all tokens so far. forward brings tokens to the host,
    launch leaves them where the logits are.
    """

    @property
    def reads_output(self) -> bool: ...

    def update_state(self, batch_update: BatchUpdate | None) -> None: ...

    def forward(
        self, logits: torch.Tensor, rows: Sequence[int], uniforms: Callable[[list[int]], list[float]]
    ) -> SamplerOutput: ...

    def launch(
        self, logits: torch.Tensor, rows: Sequence[int], uniforms: Callable[[list[int]], list[float]]
    ) -> Samples: ...


class TokenLeader:
    """Samples, and tells the group."""

    def __init__(self, sampler: Sampler, group: Group, device: torch.device) -> None:
        self._sampler = sampler
        self._group = group
        self._device = device

    @property
    def reads_output(self) -> bool:
        return self._sampler.reads_output

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        self._sampler.update_state(batch_update)

    def forward(
        self, logits: torch.Tensor, rows: Sequence[int], uniforms: Callable[[list[int]], list[float]]
    ) -> SamplerOutput:
        output = self._sampler.forward(logits, rows, uniforms)
        if len(rows):
            self._group.broadcast(torch.tensor(output.token_ids, device=self._device))
        return output

    @torch.inference_mode()
    def launch(
        self, logits: torch.Tensor, rows: Sequence[int], uniforms: Callable[[list[int]], list[float]]
    ) -> Samples:
        samples = self._sampler.launch(logits, rows, uniforms)
        if len(rows):
            self._group.broadcast(samples.token_ids)
        return samples


class TokenFollower:
    """Takes the tokens that the group's first rank has sampled; knows of no logprobs and no errors."""

    reads_output = False

    def __init__(self, group: Group, device: torch.device) -> None:
        self._group = group
        self._device = device

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """The leader follows the batch's rows."""

    def forward(
        self, logits: torch.Tensor, rows: Sequence[int], uniforms: Callable[[list[int]], list[float]]
    ) -> SamplerOutput:
        return SamplerOutput(self.launch(logits, rows, uniforms).token_ids.tolist(), None, [], {})

    @torch.inference_mode()
    def launch(
        self, logits: torch.Tensor, rows: Sequence[int], uniforms: Callable[[list[int]], list[float]]
    ) -> Samples:
        token_ids = torch.empty(len(rows), dtype=torch.int64, device=self._device)
        if len(rows):
            self._group.broadcast(token_ids)
        return Samples(np.asarray(rows, np.int64), token_ids, {})


class TokensLater:
    """On a stage that has no logits: nobody has a token, until a step tells of it (SchedulerOutput.sampled_tokens)."""

    reads_output = False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """The last stage follows the batch's rows."""

    def forward(
        self, logits: torch.Tensor, rows: Sequence[int], uniforms: Callable[[list[int]], list[float]]
    ) -> SamplerOutput:
        return SamplerOutput([NO_TOKEN] * len(rows), None, [], {})

    def launch(
        self, logits: torch.Tensor, rows: Sequence[int], uniforms: Callable[[list[int]], list[float]]
    ) -> Samples:
        return Samples(np.asarray(rows, np.int64), torch.full((len(rows),), NO_TOKEN), {})
