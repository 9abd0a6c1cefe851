"""Steps of made-up requests, before there are real ones: to warm up, to find the peak of memory, to time prefill.

Their keys and values all go to the null block, which nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fathom.sampling_params import SamplingParams
from fathom.step import NewRequestData, PrefillTimes, SchedulerOutput
from fathom.worker.model_runner import ModelRunner

_SHORT = 16  # tokens of the short chunk
_LONG = 512  # tokens of the long chunk, unless it takes longer than
_LONG_S = 0.04
_DEEP = 64  # tokens of the chunk behind a context of
_DEEP_CONTEXT = 2048
_LEAST_SHARE = 0.25  # of the long chunk's time is its tokens', whatever the short one seems to say
_SHALLOWEST = 256  # less context than this does not show


GREEDY = SamplingParams(temperature=0.0)
EVERYTHING = SamplingParams(
    temperature=1.0, top_k=5, top_p=0.9, min_p=0.01, repetition_penalty=1.1, frequency_penalty=0.1, logprobs=2
)
"""What takes every kernel that comes behind the model."""


def run_dummy_batch(runner: ModelRunner, num_requests: int, tokens_each: int, params: SamplingParams = GREEDY) -> None:
    """A prefill and a decode of `num_requests` prompts of `tokens_each` tokens."""
    requests = _requests(runner, num_requests, tokens_each, 0, params)
    ids = [request.request_id for request in requests]
    _run(runner, ids, requests, tokens_each)
    _run(runner, ids, [], 1)
    _drop(runner, ids)


def time_prefill(
    runner: ModelRunner, max_tokens: int, max_model_len: int, agree: Callable[[float], float]
) -> PrefillTimes:
    """Time a short chunk, a longer one and one behind a long context, and solve for what a token and its context cost.

    Takes about a quarter of a second.

    Args:
        max_tokens: most tokens of a step.
        agree: a number of this rank's -> the number that all ranks take in its place, since they run steps together.
    """
    most = min(max_tokens, max_model_len - 1)
    short = min(_SHORT, most)
    short_s = agree(_time_chunk(runner, short, 0))
    long = min(max(2 * short, int(short * _LONG_S / max(short_s, 1e-6))), _LONG, most)
    if long <= short:
        return PrefillTimes(0.0, short_s / short, 0.0)
    deep = min(_DEEP, long)
    context = min(_DEEP_CONTEXT, max_model_len - 1 - deep)
    chunks = [(short, 0), (long, 0)] + ([(deep, context)] if context >= _SHALLOWEST else [])
    seconds = [short_s] + [_time_chunk(runner, *chunk) for chunk in chunks[1:]]
    rows = [[1.0, count, count * (position + count / 2)][: len(chunks)] for count, position in chunks]
    fixed_s, token_s, *context_s = np.linalg.solve(np.array(rows), np.array(seconds)).clip(min=0.0).tolist()
    token_s = max(token_s, _LEAST_SHARE * seconds[1] / long)
    return PrefillTimes(fixed_s, token_s, *(context_s or [0.0]))


def _time_chunk(runner: ModelRunner, num_tokens: int, position: int) -> float:
    """Seconds of a chunk of a prompt that begins at `position`; the better of two tries."""
    best = float("inf")
    for _ in range(2):
        requests = _requests(runner, 1, num_tokens, position)
        ids = [requests[0].request_id]
        start = runner.device.busy_s()
        _run(runner, ids, requests, num_tokens)
        best = min(best, runner.device.busy_s() - start)
        _drop(runner, ids)
    return best


def _requests(
    runner: ModelRunner, count: int, num_tokens: int, context: int, params: SamplingParams = GREEDY
) -> list[NewRequestData]:
    no_blocks: tuple[list[int], ...] = tuple([] for _ in runner.batch.block_tables)
    tokens = np.zeros(context + num_tokens, np.int32)
    return [
        NewRequestData(f"warm-up-{index}", tokens, len(tokens), context, no_blocks, params, 0, 0)
        for index in range(count)
    ]


def _run(runner: ModelRunner, ids: list[str], new: list[NewRequestData], tokens_each: int) -> None:
    step = SchedulerOutput(dict.fromkeys(ids, tokens_each), tokens_each * len(ids), new, {}, [], 0, 0)
    runner.execute_model(step)
    runner.sample_tokens()


def _drop(runner: ModelRunner, ids: list[str]) -> None:
    runner.sampler.update_state(runner.batch.apply(SchedulerOutput({}, 0, [], {}, ids, 0, 0)))
