"""How large a step is, and who gets how much of it: as formulas, and as what the scheduler does with them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fathom.core.scheduler.pace import step_size_for
from fathom.core.scheduler.prefill_room import LEAST_ROOM, StepSize
from fathom.core.scheduler.scheduler import Scheduler
from fathom.step import ModelRunnerOutput, PrefillTimes
from tests.core.helpers import kv_config, make_scheduler, request


@given(
    tokens=st.integers(1, 4096), doubling=st.floats(1, 1e6), position=st.integers(0, 100_000), room=st.floats(0, 1e5)
)
def test_a_chunk_is_the_longest_that_fits(tokens: int, doubling: float, position: int, room: float) -> None:
    size = StepSize(tokens, doubling)
    count = size.fitting(position, room)
    assert size.cost(position, count) <= room * (1 + 1e-6) + 1e-3
    assert size.cost(position, count + 1) > room
    assert size.fitting(0, size.room) == tokens


def test_two_chunks_cost_what_one_does() -> None:
    size = StepSize(100, 50.0)
    assert size.cost(10, 30) + size.cost(40, 20) == pytest.approx(size.cost(10, 50))
    assert size.cost(0, 50) == 75  # mean position 25
    assert StepSize(100).cost(7_000, 3) == 3


@pytest.mark.parametrize(
    ("times", "most", "tokens", "words"),
    [
        ((0.010, 0.001, 0.0), 2048, 128, "takes about 138 ms, by itl_target_ms=150"),
        ((0.010, 0.001, 0.0), 100, 100, "takes about 110 ms, by itl_target_ms=150, which would allow more"),
        ((0.120, 0.004, 0.0), 2048, 32, "takes about 248 ms, by itl_target_ms=150, and with fewer newcomers"),
        ((0.200, 0.001, 0.0), 2048, 32, "takes about 232 ms"),
        ((0.010, 0.001, 1e-6), 2048, 128, "takes about 146 ms"),  # 8 ms of it attention
        ((0.010, 0.001, 1e-5), 2048, 80, "twice as long at position 100,"),
        ((0.0, 0.0, 0.0), 2048, 2048, "takes about 0 ms"),
    ],
)
def test_a_step_is_sized_to_the_latency_target(
    times: tuple[float, float, float], most: int, tokens: int, words: str
) -> None:
    size, reason = step_size_for(PrefillTimes(*times), 150.0, most, multiple_of=16)
    assert size.tokens == tokens
    assert reason.startswith(f"max_num_batched_tokens={tokens}: a prefill step of it ")
    assert words in reason
    assert (size.doubling == math.inf) == (times[2] == 0)
    assert size.room >= size.cost(0, size.tokens)


def test_a_step_limited_by_its_buffers_is_as_large_behind_a_context_as_time_allows() -> None:
    size, _ = step_size_for(PrefillTimes(0.0, 0.001, 1e-6), 1000.0, 200, multiple_of=16)
    assert (size.tokens, size.room) == (200, 1000)
    assert not size.is_long(2_000, 200)
    assert size.is_long(8_000, 200)


def run_step(scheduler: Scheduler) -> dict[str, int]:
    """Run a step in which everybody who may says 1; returns its tokens."""
    step = scheduler.schedule()
    complete = [name for name in step.num_scheduled_tokens if scheduler.requests[name].num_missing == 1]
    scheduler.update_from_output(step, ModelRunnerOutput(dict.fromkeys(complete, 1)))
    scheduler.check_invariants()
    return step.num_scheduled_tokens


def test_chunks_get_shorter_as_the_context_gets_longer() -> None:
    kv = kv_config(200)
    scheduler = make_scheduler(kv, max_model_len=500, max_num_batched_tokens=64, step_size=StepSize(64, 64.0))
    scheduler.add_requests(request("a", [1] * 400))
    chunks = []
    while sum(chunks) < 400:
        chunks += run_step(scheduler).values()
    assert chunks == [64, 41, 33, 28, 25, 23, 21, 19, 18, 17, 16, 16, 15, 15, 14, 14, 13, 8]


@pytest.mark.parametrize(("num_decodes", "prompt_tokens"), [(0, 64), (8, 56), (32, 32), (60, 32), (100, 28)])
def test_streams_count_as_part_of_the_step_but_leave_newcomers_some_room(num_decodes: int, prompt_tokens: int) -> None:
    scheduler = make_scheduler(
        kv_config(400), max_model_len=300, max_num_batched_tokens=128, max_num_seqs=128, step_size=StepSize(64)
    )
    for index in range(num_decodes):
        scheduler.add_requests(request(f"stream {index}", [index], 50))
    while scheduler.waiting:
        run_step(scheduler)
    scheduler.add_requests(request("prompt", [1] * 200))
    tokens = run_step(scheduler)
    assert tokens["prompt"] == prompt_tokens
    assert sum(tokens.values()) == num_decodes + prompt_tokens
    assert LEAST_ROOM == 32


def test_a_long_prompt_shares_with_short_ones_and_takes_what_they_leave() -> None:
    scheduler = make_scheduler(kv_config(200), max_model_len=300, max_num_batched_tokens=32)
    scheduler.add_requests(request("long", list(range(100)), 1))
    assert run_step(scheduler) == {"long": 32}
    for name, length in (("second long", 50), ("short", 10), ("shorter", 4), ("last", 20)):
        scheduler.add_requests(request(name, [ord(name[-1]) + len(name)] * length, 1))
    assert run_step(scheduler) == {"long": 16, "short": 10, "shorter": 4, "last": 2}
    assert run_step(scheduler) == {"long": 16, "last": 16}
    assert run_step(scheduler) == {"long": 30, "last": 2}
    assert run_step(scheduler) == {"long": 6, "second long": 26}  # the rest of a long prompt may be short


def test_several_long_prompts_may_be_under_way() -> None:
    scheduler = make_scheduler(
        kv_config(200), max_model_len=300, max_num_batched_tokens=32, max_long_partial_prefills=2
    )
    for index in range(3):
        scheduler.add_requests(request(str(index), [index] * 100, 1))
    assert scheduler.schedule().num_scheduled_tokens == {"0": 24, "1": 8}


def test_a_long_prompt_that_is_cached_is_a_short_one() -> None:
    scheduler = make_scheduler(kv_config(200), max_model_len=300, max_num_batched_tokens=32)
    scheduler.add_requests(request("history", [5] * 80, 1))
    while scheduler.requests:
        run_step(scheduler)
    scheduler.add_requests(request("long", [6] * 100, 1))
    scheduler.add_requests(request("waits", [7] * 100, 1))
    scheduler.add_requests(request("more of it", [5] * 80 + [7] * 6, 1))
    assert run_step(scheduler) == {"long": 26, "more of it": 6}
