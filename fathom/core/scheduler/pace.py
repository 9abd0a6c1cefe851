"""From the times of a few steps to how much prefill a step holds, so that streams get their tokens in time."""

from __future__ import annotations

import math

from fathom.core.scheduler.prefill_room import LEAST_ROOM, StepSize
from fathom.step import PrefillTimes


def step_size_for(times: PrefillTimes, target_ms: float, most: int, multiple_of: int) -> tuple[StepSize, str]:
    """The largest step that takes no longer than `target_ms`.

    Args:
        most: tokens, whatever the target would allow.
        multiple_of: what the number of tokens is rounded down to: blocks of the KV cache.

    Returns:
        the size, at least LEAST_ROOM tokens (or `most`), and the choice with its reason, for the log.
    """
    fixed_s, token_s, context_s = times.fixed_s, max(times.token_s, 1e-9), times.context_token_s
    doubling = token_s / context_s if context_s > 0 else math.inf
    room = max(target_ms / 1000 - fixed_s, 0.0) / token_s
    wanted = StepSize(0, doubling).fitting(0, room) // multiple_of * multiple_of
    size = StepSize(min(max(wanted, LEAST_ROOM), most), doubling, room if wanted > most else None)
    takes_ms = 1000 * (fixed_s + size.cost(0, size.tokens) * token_s)
    why = f"a prefill step of it takes about {takes_ms:.0f} ms, by itl_target_ms={target_ms:g}"
    if size.tokens > wanted:
        why += ", and with fewer newcomers would wait too long"
    elif size.tokens < wanted:
        why += ", which would allow more"
    if doubling < math.inf:
        why += f"; a prompt's token takes twice as long at position {doubling:,.0f}, and steps there hold fewer"
    return size, f"max_num_batched_tokens={size.tokens}: {why}"
