"""Outbox: puts outputs off that nobody waits for.

A caller that is woken for every token takes a core from the next step's kernels. Most offline requests want their
answer whole, and nothing of it is looked at before: their tokens are gathered, and go out together with the next
output that cannot wait, or when the first of them is MAX_DELAY_S old.
"""

from __future__ import annotations

import time

from fathom.wire.messages import EngineCoreOutput, EngineCoreOutputs

MAX_DELAY_S = 0.05


class Outbox:
    """Steps' outputs on their way to the caller, in order."""

    def __init__(self) -> None:
        self._held: list[EngineCoreOutputs] = []
        self._since = 0.0

    def add(self, outputs: EngineCoreOutputs) -> list[EngineCoreOutputs]:
        """Take in a step's outputs; returns what is to be sent now."""
        if not self._held:
            if outputs.urgent:
                return [outputs]
            self._held.append(outputs)
            self._since = time.monotonic()
            return []
        last = self._held[-1]
        if outputs.logprobs is None and last.logprobs is None and outputs.stats is None and last.stats is None:
            _append(last.outputs, outputs.outputs)
        else:
            self._held.append(outputs)
        return self.take() if outputs.urgent or time.monotonic() - self._since > MAX_DELAY_S else []

    def take(self) -> list[EngineCoreOutputs]:
        """All that is held."""
        held, self._held = self._held, []
        return held


def _append(held: list[EngineCoreOutput], new: list[EngineCoreOutput]) -> None:
    """Add a step's outputs to those of earlier ones, one for each request."""
    place = {output.request_id: index for index, output in enumerate(held)}
    for output in new:
        index = place.get(output.request_id)
        if index is None:
            held.append(output)
        else:
            output.new_token_ids = held[index].new_token_ids + output.new_token_ids
            output.prompt_logprobs = output.prompt_logprobs or held[index].prompt_logprobs
            held[index] = output
