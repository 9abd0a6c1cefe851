"""What is told about each step, for those who watch the engine. It costs a step about a microsecond."""

from __future__ import annotations

import time

from fathom.step import SchedulerOutput
from fathom.wire.messages import StepStats


def step_stats(work: SchedulerOutput, schedule_s: float, begun: float, ended: float) -> StepStats:
    """The numbers of a step whose result has just been taken in.

    Args:
        schedule_s: seconds of choosing its batch.
        begun, ended: time.perf_counter() when the model could begin with it, and when its tokens were there.
    """
    return StepStats(
        work.num_context_requests,
        work.num_context_tokens,
        work.num_generation_requests,
        work.num_generation_tokens,
        sum([request.num_computed_tokens for request in work.new_requests]),
        time.time(),
        schedule_s,
        ended - begun,
        time.perf_counter() - ended,
    )
