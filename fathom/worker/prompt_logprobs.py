"""PromptLogprobs: log-probabilities of prompt tokens, collected chunk by chunk while the prompt is computed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from fathom.kernels.token_logprobs import TokenScores
from fathom.models.decoder import CausalLM
from fathom.step import LogprobsArrays
from fathom.worker.device import Device
from fathom.worker.input_batch import InputBatch
from fathom.worker.sample.logprobs import LogprobsMode, prompt_logprobs

_ROWS_AT_ONCE = 128
"""Positions projected to the vocabulary at a time: bounds the memory to 128 x vocabulary x 4 bytes."""


class PromptScores:
    """One prompt's scores, piece by piece, as copies on the host that may be under way."""

    def __init__(self) -> None:
        self.pieces: list[TokenScores] = []

    def arrays(self) -> LogprobsArrays:
        """All of them; once the copies are there."""
        return LogprobsArrays.joined([piece.arrays().arrays for piece in self.pieces])


class PromptLogprobs:
    """Keeps the scores of prompts that are not complete yet, by request id."""

    def __init__(self, model: CausalLM, device: Device, logprobs_mode: LogprobsMode) -> None:
        self._model = model
        self._device = device
        self._mode = logprobs_mode
        self._scores: dict[str, PromptScores] = {}

    def drop(self, request_ids: Iterable[str]) -> None:
        """Forget requests that have left the batch; one that was preempted starts anew."""
        for request_id in request_ids:
            self._scores.pop(request_id, None)

    def collect(self, batch: InputBatch, rows: np.ndarray, query_start: np.ndarray, hidden: torch.Tensor) -> None:
        """Score the prompt tokens that this step's positions predict; num_computed_tokens has moved on over them.

        Args:
            rows: [num_reqs] batch rows of the step's requests. query_start: [num_reqs + 1].
            hidden: [num_tokens, hidden_size].
        """
        computed = batch.num_computed_tokens[rows] - np.diff(query_start)
        in_prompt = np.flatnonzero(computed < batch.num_prompt_tokens[rows] - 1)
        for index in in_prompt.tolist():
            row = int(rows[index])
            k = batch.params[row].prompt_logprobs
            if k is None:
                continue
            first = int(computed[index])
            last_target = int(batch.num_prompt_tokens[row]) - 1
            begin, end = int(query_start[index]), int(query_start[index + 1])
            count = min(end - begin, last_target - first)
            targets = batch.token_ids[row, first + 1 : first + 1 + count]
            scores = self._scores.setdefault(batch.request_ids[row], PromptScores())
            for start in range(0, count, _ROWS_AT_ONCE):
                stop = min(start + _ROWS_AT_ONCE, count)
                logits = self._model.compute_logits(hidden[begin + start : begin + stop])
                piece = prompt_logprobs(logits, targets[start:stop], k, self._mode)
                scores.pieces.append(piece.copied(self._device.copy_to_host))

    def take_complete(self, batch: InputBatch) -> dict[str, PromptScores]:
        """The whole prompts' scores, for each request whose prompt has just been completed."""
        if not self._scores:
            return {}
        done = [
            request_id
            for request_id in self._scores
            if batch.num_computed_tokens[batch.row_of[request_id]] >= batch.num_prompt_tokens[batch.row_of[request_id]]
        ]
        return {request_id: self._scores.pop(request_id) for request_id in done}
