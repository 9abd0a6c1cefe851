"""StepUpdate: turns a step's result into new tokens of requests and into outputs for the caller."""

from __future__ import annotations

from collections.abc import Container

from fathom.core.request import Request
from fathom.step import ModelRunnerOutput
from fathom.wire.messages import EngineCoreOutput, EngineCoreOutputs, FinishReason, SchedulerStats


class StepUpdate:
    """Collects one step's outputs, request by request."""

    def __init__(self) -> None:
        self._outputs: list[EngineCoreOutput] = []
        self._urgent = False

    def apply(self, request: Request, result: ModelRunnerOutput) -> bool:
        """Append the request's sampled token, if it has one; returns whether the request is finished."""
        request_id = request.request_id
        token_id = result.sampled_token_ids.get(request_id)
        if token_id is None:
            return False
        request.num_awaited_tokens -= 1
        finish_reason, stop_reason = request.append(token_id)
        output = EngineCoreOutput(
            request_id,
            [token_id],
            finish_reason,
            stop_reason,
            result.logprobs_rows.get(request_id, -1) if result.logprobs_rows else -1,
            num_cached_tokens=request.num_cached_tokens,
            num_preemptions=request.num_preemptions,
            scheduled_time=request.scheduled_time,
        )
        if not request.prompt_logprobs_sent:
            output.prompt_logprobs = result.prompt_logprobs.get(request_id)
            request.prompt_logprobs_sent = True
        self._outputs.append(output)
        finished = finish_reason is not None
        # The first token's arrival is measured.
        self._urgent |= finished or request.is_watched or request.num_tokens == request.num_prompt_tokens + 1
        return finished

    def fail(self, request: Request, message: str) -> None:
        """Tell the caller that this request failed."""
        output = EngineCoreOutput(request.request_id, [], finish_reason=FinishReason.ERROR, error=message)
        self._outputs.append(output)
        self._urgent = True

    def outputs(
        self, result: ModelRunnerOutput, attended: Container[str], coasting_watched: bool, stats: SchedulerStats | None
    ) -> EngineCoreOutputs:
        """What has been collected, and the tokens of all that have not been attended to, of which that is all.

        coasting_watched: whether somebody waits for any of those.
        """
        sampled = result.sampled_token_ids
        tokens = {key: [token_id] for key, token_id in sampled.items() if key not in attended}
        urgent = self._urgent or stats is not None or (coasting_watched and bool(tokens))
        return EngineCoreOutputs(self._outputs, result.logprobs, stats, None, urgent, tokens)
