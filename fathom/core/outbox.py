"""Outbox: puts outputs off that nobody waits for.

A caller that is woken for every token takes a core from the next step's kernels. Most offline requests want their
answer whole, and nothing of it is looked at before: their tokens are gathered, and go out together with the next
output that cannot wait, or when the first of them is MAX_DELAY_S old.
"""

from __future__ import annotations

import time

from fathom.step import LogprobsArrays
from fathom.wire.messages import EngineCoreOutput, EngineCoreOutputs

MAX_DELAY_S = 0.05
MAX_LOGPROBS_BYTES = 262_144
"""Of a step; to gather more would take longer, since it is copied, than to send it by itself."""


class Outbox:
    """Steps' outputs on their way to the caller, in order."""

    def __init__(self) -> None:
        self._held: list[_Gathered] = []
        self._since = 0.0

    def add(self, outputs: EngineCoreOutputs) -> list[EngineCoreOutputs]:
        """Take in a step's outputs; returns what is to be sent now."""
        if not self._held:
            if outputs.urgent:
                return [outputs]
            self._since = time.monotonic()
        if not self._held or not self._held[-1].fits(outputs):
            self._held.append(_Gathered())
        self._held[-1].add(outputs)
        return self.take() if outputs.urgent or time.monotonic() - self._since > MAX_DELAY_S else []

    def take(self) -> list[EngineCoreOutputs]:
        """All that is held."""
        held, self._held = self._held, []
        return [gathered.message() for gathered in held]


class _Gathered:
    """Outputs of one step and of those behind it: one for each request, with the logprobs of all its tokens."""

    def __init__(self) -> None:
        self._steps: list[EngineCoreOutputs] = []
        self._outputs: dict[str, EngineCoreOutput] = {}
        self._tokens: dict[str, list[int]] = {}  # of requests that are not in _outputs
        self._logprobs: list[LogprobsArrays] = []
        self._num_rows = 0
        self._rows: dict[str, list[int]] = {}  # by request, those of its tokens

    def fits(self, outputs: EngineCoreOutputs) -> bool:
        """Whether these can be told in the same message."""
        if outputs.stats is not None or self._steps[-1].stats is not None:
            return False
        if outputs.logprobs is None or not self._logprobs:
            return True
        is_small = outputs.logprobs.packed.nbytes <= MAX_LOGPROBS_BYTES
        return is_small and outputs.logprobs.width == self._logprobs[-1].width

    def add(self, outputs: EngineCoreOutputs) -> None:
        self._steps.append(outputs)
        for output in outputs.outputs:
            request_id = output.request_id
            if output.logprobs_row >= 0:
                self._rows.setdefault(request_id, []).append(self._num_rows + output.logprobs_row)
            before = self._outputs.get(request_id)
            if before is None:
                output.new_token_ids = self._tokens.pop(request_id, []) + output.new_token_ids
            else:
                output.new_token_ids = before.new_token_ids + output.new_token_ids
                output.prompt_logprobs = output.prompt_logprobs or before.prompt_logprobs
            self._outputs[request_id] = output
        for request_id, token_ids in outputs.tokens.items():
            before = self._outputs.get(request_id)
            tokens = self._tokens.setdefault(request_id, []) if before is None else before.new_token_ids
            tokens += token_ids
        if outputs.logprobs is not None:
            self._logprobs.append(outputs.logprobs)
            self._num_rows += len(outputs.logprobs)

    def message(self) -> EngineCoreOutputs:
        """All of it; a single step's outputs as they came."""
        message = self._steps[-1]
        if len(self._steps) > 1:
            message.outputs = list(self._outputs.values())
            message.tokens = self._tokens
            message.logprobs = self._ordered_logprobs() if self._logprobs else None
        return message

    def _ordered_logprobs(self) -> LogprobsArrays:
        """One request's rows after the other's; the outputs are told where theirs begin."""
        order: list[int] = []
        for request_id, rows in self._rows.items():
            self._outputs[request_id].logprobs_row = len(order)
            order += rows
        return LogprobsArrays.joined([arrays.arrays for arrays in self._logprobs]).take(order)
