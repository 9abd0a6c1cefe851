"""Random arrivals, aborts, failures and steps under random limits: nothing leaks or starves, every answer is right.

Steps are in flight one, two or three deep. What the answers must be follows from the prompts alone, so that they are
those of a scheduler that never runs ahead.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fathom.core.kv_cache.groups import longest_sequence
from fathom.core.scheduler.prefill_room import StepSize
from fathom.step import ModelRunnerOutput, SchedulerOutput
from fathom.wire.messages import EngineCoreOutputs, FinishReason
from tests.core.helpers import every_output, kv_config, make_scheduler, request
from tests.core.simulator import VOCAB, FirstStage, SimulatedWorker, expected_answer

WINDOWS = [(None,), (None, 5), (7,), (None, 5, 5, 9, 9)]
FAILED_STEP = "the step failed"


@dataclass
class Expectation:
    """A request's answer and the way it ends, if it is left alone."""

    tokens: list[int]
    reason: FinishReason
    stop_reason: int | None
    answer: list[int] = field(default_factory=list)


def expectation(
    prompt: list[int], max_tokens: int, stop_token_ids: list[int], eos_token_ids: list[int], min_tokens: int
) -> Expectation:
    tokens = expected_answer(prompt, max_tokens)
    for count, token in enumerate(tokens, start=1):
        if count >= min_tokens and token in (*eos_token_ids, *stop_token_ids):
            return Expectation(tokens[:count], FinishReason.STOP, None if token in eos_token_ids else token)
    return Expectation(tokens, FinishReason.LENGTH, None)


class Driver:
    """Applies operations to a scheduler and its simulated worker and checks everything after each."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        block_size = chance.choice([1, 2, 4])
        windows = chance.choice(WINDOWS)
        self.kv = kv_config(chance.choice([24, 40, 90]), block_size, windows)
        budget = chance.choice([4, 8, 64])
        max_model_len = longest_sequence(self.kv.groups, block_size, self.kv.num_blocks, budget, 30)
        chunked = budget < max_model_len or chance.random() < 0.5
        tokens = budget if not chunked else chance.choice([budget, budget, max(1, budget // 3)])
        size = StepSize(tokens, chance.choice([math.inf, 10.0]) if chunked else math.inf)
        self.policy = chance.choice(["fcfs", "priority"])
        self.scheduler = make_scheduler(
            self.kv,
            max_model_len=max_model_len,
            step_size=size,
            max_long_partial_prefills=chance.choice([1, 1, 2]),
            max_num_seqs=chance.randint(1, min(6, budget)),
            max_num_batched_tokens=budget,
            enable_chunked_prefill=chunked,
            long_prefill_token_threshold=chance.choice([0, 0, 3]),
            enable_prefix_caching=chance.random() < 0.8,
            scheduling_policy=self.policy,
            pipeline_parallel_size=(stages := chance.choice([1, 1, 2, 3])),
        )
        self.max_model_len = max_model_len
        self.worker = SimulatedWorker(self.kv)
        self.stages = stages
        self.first_stage = FirstStage()
        self.depth = chance.choice([1, 2, 2, 3]) if stages == 1 else stages
        self.failures = chance.choice([0.0, 0.0, 0.02])
        self.in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput | None]] = deque()
        self.expected: dict[str, Expectation] = {}
        self.num_added = 0
        self.seeds = [[chance.randrange(3) for _ in range(40)] for _ in range(3)]

    def operate(self) -> None:
        action = self.chance.random()
        if action < 0.25 and len(self.scheduler.requests) < 12:
            self.num_added += 1
            self.add(str(self.num_added))
        elif action < 0.30 and self.scheduler.requests:
            self.abort()
        elif action < 0.305:
            self.scheduler.kv_cache.reset_prefix_cache()
        else:
            self.step()

    def add(self, request_id: str) -> None:
        chance = self.chance
        length = chance.randint(1, self.max_model_len - 1)
        prompt = chance.choice(self.seeds)[:length]  # common prefixes, so that the cache is used
        prompt[-1] = chance.randrange(3)
        max_tokens = chance.randint(1, 20)
        ends = {
            "stop_token_ids": chance.sample(range(VOCAB), chance.choice([0, 0, 1])),
            "eos_token_ids": chance.sample(range(VOCAB), chance.choice([0, 0, 1])),
            "min_tokens": chance.choice([0, 0, min(4, max_tokens)]),
        }
        priority = chance.randrange(3) if self.policy == "priority" else 0
        salt = chance.choice([None, None, "tenant"])
        message = request(request_id, prompt, max_tokens, priority=priority, cache_salt=salt, **ends)
        assert self.scheduler.add_requests(message) == []
        self.expected[request_id] = expectation(prompt, min(max_tokens, self.max_model_len - len(prompt)), **ends)

    def abort(self) -> None:
        """Abort a request, wherever it is; its id may be used again at once."""
        request_id = self.chance.choice(list(self.scheduler.requests))
        self.scheduler.finish_requests([request_id])
        del self.expected[request_id]
        if self.chance.random() < 0.3:
            self.add(request_id)

    def step(self) -> None:
        while len(self.in_flight) < self.depth and self.scheduler.has_unfinished_requests():
            if not self.launch():
                break
        if self.in_flight:
            self.land()

    def launch(self) -> bool:
        before = [(r.request_id, r.num_missing, r.ends_by_length()) for r in self.scheduler.running]
        step = self.scheduler.schedule()
        self.check_shares(before, step)
        if not step.num_scheduled_tokens:
            assert self.in_flight, "work is waiting and nothing is scheduled"
            return False
        assert step.total_num_scheduled_tokens == sum(step.num_scheduled_tokens.values())
        assert step.total_num_scheduled_tokens <= self.scheduler.max_num_batched_tokens
        chance = self.chance
        behind_a_failure = bool(self.in_flight) and self.in_flight[-1][1] is None
        if behind_a_failure or chance.random() < self.failures:
            reached = chance.random() < 0.5
            self.worker.fail(step, reached=reached)
            if reached:
                self.first_stage.execute(step)
            self.in_flight.append((step, None))
        else:
            if self.stages > 1:
                self.check_first_stage(step)
            failing = [key for key in step.num_scheduled_tokens if chance.random() < self.failures / 2]
            self.in_flight.append((step, self.worker.execute(step, failing)))
        return True

    def check_first_stage(self, step: SchedulerOutput) -> None:
        """It has every token that it is to compute, and no request is in more than one step that samples."""
        assert len(step.num_scheduled_tokens) <= -(-len(self.scheduler.requests) // self.stages)
        for request_id, tokens in self.first_stage.execute(step).items():
            count = step.num_scheduled_tokens[request_id]
            assert len(tokens) == count
            known = self.scheduler.requests[request_id]
            assert tokens == list(known.token_ids[known.num_computed_tokens - count : known.num_computed_tokens])

    def check_shares(self, before: list[tuple[str, int, bool]], step: SchedulerOutput) -> None:
        """Whoever generates got its token, and the first prompt in the order part of the step."""
        if self.stages > 1:
            return  # a step has its part of the requests
        preempted = {request.request_id for request in self.scheduler.requests.values()}
        preempted -= {request.request_id for request in self.scheduler.running}
        prompts = [name for name, missing, _ in before if missing > 1 and name not in preempted]
        streams = {name for name, missing, ends in before if missing == 1 and not ends and name not in preempted}
        assert streams <= set(step.num_scheduled_tokens)
        assert all(step.num_scheduled_tokens[name] == 1 for name in streams)
        if prompts:
            assert step.num_scheduled_tokens.get(prompts[0], 0) >= 1

    def land(self) -> None:
        step, result = self.in_flight.popleft()
        if result is None:
            living = {key for key in step.num_scheduled_tokens if key in self.scheduler.requests}
            outputs = self.scheduler.fail_step(step, FAILED_STEP)
            self.in_flight.clear()
            assert {output.request_id for output in outputs.outputs} <= living
            for output in outputs.outputs:
                assert (output.error, output.new_token_ids) == (FAILED_STEP, [])
                del self.expected[output.request_id]
        else:
            self.check(self.scheduler.update_from_output(step, result))

    def check(self, outputs: EngineCoreOutputs) -> None:
        for output in every_output(outputs):
            if output.finish_reason is FinishReason.ERROR:
                assert output.error == "failed"
                del self.expected[output.request_id]
                continue
            expected = self.expected[output.request_id]
            expected.answer += output.new_token_ids
            assert expected.answer == expected.tokens[: len(expected.answer)]
            if len(expected.answer) == len(expected.tokens):
                assert (output.finish_reason, output.stop_reason) == (expected.reason, expected.stop_reason)
                del self.expected[output.request_id]
            else:
                assert output.finish_reason is None

    def finish(self) -> None:
        for _ in range(20_000):
            if not self.scheduler.has_unfinished_requests() and not self.in_flight:
                break
            self.step()
        assert not self.expected, "a request never ended"
        assert self.scheduler.kv_cache.pool.usage == 0.0
        self.scheduler.check_invariants()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 150))
def test_invariants_hold_after_every_operation(seed: int, count: int) -> None:
    driver = Driver(random.Random(seed))
    for _ in range(count):
        driver.operate()
        driver.scheduler.check_invariants()
    driver.finish()


@pytest.mark.parametrize("seed", range(20))
def test_two_hundred_thousand_random_operations_end_with_every_answer_right(seed: int) -> None:
    driver = Driver(random.Random(seed))
    for index in range(10_000):
        driver.operate()
        if index % 500 == 0:
            driver.scheduler.check_invariants()
    driver.finish()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_short_prompt_has_its_first_token_soon_whatever_is_before_it(seed: int) -> None:
    """A step holds 16 tokens, half of it for whoever is behind a long prompt. Long ones keep their order."""
    chance = random.Random(seed)
    kv = kv_config(400, 4)
    scheduler = make_scheduler(kv, max_model_len=210, max_num_batched_tokens=16, max_num_seqs=16)
    worker = SimulatedWorker(kv)
    lengths = {f"long {index}": chance.randint(60, 200) for index in range(chance.randint(1, 4))}
    for name, length in lengths.items():
        scheduler.add_requests(request(name, [chance.randrange(3) for _ in range(length)], 1))
    for index in range(chance.randint(1, 3)):
        lengths[f"short {index}"] = chance.randint(1, 8)
        scheduler.add_requests(request(f"short {index}", [chance.randrange(3)] * lengths[f"short {index}"], 1))
    steps, first = 0, {}
    while scheduler.has_unfinished_requests():
        steps += 1
        step = scheduler.schedule()
        if any(name.startswith("long") for name in scheduler.requests):
            assert step.total_num_scheduled_tokens == 16 or len(scheduler.requests) == 1, "room was left unused"
        for output in every_output(scheduler.update_from_output(step, worker.execute(step))):
            first[output.request_id] = steps
    shorts = [name for name in first if name.startswith("short")]
    assert all(first[name] <= 3 for name in shorts)
    assert [name for name in first if name.startswith("long")] == [name for name in lengths if name.startswith("long")]
    work = sum(lengths.values())
    assert steps <= -(-work // 16) + len(lengths)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_fcfs_gives_first_tokens_in_order_of_arrival(seed: int) -> None:
    """With whole prompts in a step and no aborts, nobody overtakes anybody."""
    chance = random.Random(seed)
    kv = kv_config(chance.choice([12, 40]), 4)
    scheduler = make_scheduler(kv, max_model_len=32, max_num_batched_tokens=32, max_num_seqs=4)
    worker, first = SimulatedWorker(kv), []
    for index in range(20):
        scheduler.add_requests(request(str(index), [chance.randrange(3) for _ in range(chance.randint(1, 20))], 6))
    while scheduler.has_unfinished_requests():
        step = scheduler.schedule()
        for output in every_output(scheduler.update_from_output(step, worker.execute(step))):
            if output.request_id not in first:
                first.append(output.request_id)
    assert first == [str(index) for index in range(20)]
