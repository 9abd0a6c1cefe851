"""repetition_penalty, frequency_penalty and presence_penalty: make tokens that have occurred less likely.

fathom/kernels/penalties has the rules. repetition_penalty counts the prompt's tokens too.

Only tokens that have occurred are touched. Their number is bounded by the context's length, far below the
vocabulary's size, so each row keeps a list of its distinct tokens with their counts instead of a row of the
vocabulary, and a step costs as much as there are distinct tokens.
"""

from __future__ import annotations

import numpy as np
import torch

from fathom.kernels.penalties import apply_penalties
from fathom.sampling_params import SamplingParams
from fathom.worker.sample.interface import BatchUpdate, LogitsProcessor, LogitsProcessorContext
from fathom.worker.sample.rows import RowStates


class _TokenCounts:
    """Distinct tokens of one request, in order of first occurrence, and how often the output has each.

    The output list is live; `catch_up` counts only what was appended since the last call.
    """

    def __init__(self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]) -> None:
        self.repetition = params.repetition_penalty
        self.frequency = params.frequency_penalty
        self.presence = params.presence_penalty
        self._output_ids = output_ids
        self._num_counted = 0
        prompt_tokens = list(dict.fromkeys(prompt_ids or ())) if self.repetition != 1.0 else []
        self._slots = {token: slot for slot, token in enumerate(prompt_tokens)}
        self._tokens = np.array(prompt_tokens, np.int64)
        self._counts = np.zeros(len(prompt_tokens), np.float32)

    def catch_up(self) -> tuple[np.ndarray, np.ndarray]:
        """Count the new output tokens; returns views of (token ids [n] int64, output counts [n] float32)."""
        for token in self._output_ids[self._num_counted :]:
            slot = self._slots.setdefault(token, len(self._slots))
            if slot == len(self._tokens):
                self._grow()
            self._tokens[slot] = token
            self._counts[slot] += 1
        self._num_counted = len(self._output_ids)
        size = len(self._slots)
        return self._tokens[:size], self._counts[:size]

    def _grow(self) -> None:
        room = max(64, len(self._tokens))
        self._tokens = np.concatenate([self._tokens, np.zeros(room, np.int64)])
        self._counts = np.concatenate([self._counts, np.zeros(room, np.float32)])


class Penalties(LogitsProcessor):
    """Applies the three penalties to the tokens that each row has seen."""

    reads_output = True

    def __init__(self, context: LogitsProcessorContext, device: torch.device, is_pin_memory: bool) -> None:
        self._requests: RowStates[_TokenCounts] = RowStates()
        self._rows = np.zeros(0, np.int64)
        self._penalties = np.zeros((0, 3), np.float32)

    def is_argmax_invariant(self) -> bool:
        return False

    @property
    def in_use(self) -> bool:
        return len(self._requests) > 0

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None or not self._requests.update(batch_update, _token_counts):
            return
        self._rows = np.array([row for row, _ in self._requests.items()], np.int64)
        requests = [request for _, request in self._requests.items()]
        self._penalties = np.array([(r.repetition, r.frequency, r.presence) for r in requests], np.float32)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if self._requests:
            seen = [request.catch_up() for _, request in self._requests.items()]
            token_ids, counts = zip(*seen, strict=True)
            apply_penalties(logits, self._rows, self._penalties, token_ids, counts)
        return logits


def _token_counts(params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]) -> _TokenCounts | None:
    if params.repetition_penalty == 1.0 and params.frequency_penalty == 0.0 and params.presence_penalty == 0.0:
        return None
    return _TokenCounts(params, prompt_ids, output_ids)
