"""repetition_penalty, frequency_penalty and presence_penalty: make tokens that have occurred less likely.

For a token that occurred `count` times in the output, in this order:

    repetition   logit > 0: logit / repetition_penalty, else logit * repetition_penalty (prompt tokens too)
    frequency    logit - frequency_penalty * count
    presence     logit - presence_penalty if count > 0

Only tokens that have occurred are touched. Their number is bounded by the context's length, far below the
vocabulary's size, so each row keeps a list of its distinct tokens with their counts instead of a row of the
vocabulary, and a step costs as much as there are distinct tokens.
"""

from __future__ import annotations

import numpy as np
import torch

from fathom.params import SamplingParams
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

    def __init__(self, context: LogitsProcessorContext, device: torch.device, is_pin_memory: bool) -> None:
        self._device = device
        self._requests: RowStates[_TokenCounts] = RowStates()

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is not None:
            self._requests.update(batch_update, _token_counts)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if not self._requests:
            return logits
        rows, requests = zip(*self._requests.items(), strict=True)
        tokens, counts = zip(*(request.catch_up() for request in requests), strict=True)
        sizes = [len(row_tokens) for row_tokens in tokens]
        if not any(sizes):
            return logits
        cells = (
            self._to_device(np.repeat(np.array(rows, np.int64), sizes)),
            self._to_device(np.concatenate(tokens)),
        )
        penalties = np.array([(r.repetition, r.frequency, r.presence) for r in requests], np.float32)
        repetition, frequency, presence = self._to_device(np.repeat(penalties, sizes, axis=0)).unbind(1)
        count = self._to_device(np.concatenate(counts))

        values = logits[cells]
        values = torch.where(values > 0, values / repetition, values * repetition)
        values -= frequency * count
        values -= presence * (count > 0)
        return logits.index_put_(cells, values)

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


def _token_counts(params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]) -> _TokenCounts | None:
    if params.repetition_penalty == 1.0 and params.frequency_penalty == 0.0 and params.presence_penalty == 0.0:
        return None
    return _TokenCounts(params, prompt_ids, output_ids)
