"""Random arrivals, aborts and steps under random limits: nothing leaks, nothing starves, every answer is right."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fathom.core.kv_cache.groups import longest_sequence
from tests.core.helpers import kv_config, make_scheduler, request
from tests.core.simulator import SimulatedWorker, expected_answer

WINDOWS = [(None,), (None, 5), (7,), (None, 5, 5, 9, 9)]


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
        self.policy = chance.choice(["fcfs", "priority"])
        self.scheduler = make_scheduler(
            self.kv,
            max_model_len=max_model_len,
            max_num_seqs=chance.randint(1, min(6, budget)),
            max_num_batched_tokens=budget,
            enable_chunked_prefill=chunked,
            long_prefill_token_threshold=chance.choice([0, 0, 3]),
            enable_prefix_caching=chance.random() < 0.8,
            scheduling_policy=self.policy,
        )
        self.max_model_len = max_model_len
        self.worker = SimulatedWorker(self.kv)
        self.expected: dict[str, list[int]] = {}
        self.answers: dict[str, list[int]] = {}
        self.finished: set[str] = set()
        self.first_tokens: list[int] = []
        self.num_added = 0
        self.seeds = [[chance.randrange(3) for _ in range(40)] for _ in range(3)]

    def operate(self) -> None:
        action = self.chance.random()
        if action < 0.25 and len(self.scheduler.requests) < 12:
            self.add()
        elif action < 0.30 and self.scheduler.requests:
            self.abort()
        elif action < 0.305:
            self.scheduler.kv_cache.reset_prefix_cache()
        else:
            self.step()

    def add(self) -> None:
        length = self.chance.randint(1, self.max_model_len - 1)
        prompt = self.chance.choice(self.seeds)[:length]  # common prefixes, so that the cache is used
        prompt[-1] = self.chance.randrange(3)
        max_tokens = self.chance.randint(1, 20)
        request_id = str(self.num_added)
        self.num_added += 1
        priority = self.chance.randrange(3) if self.policy == "priority" else 0
        salt = self.chance.choice([None, None, "tenant"])
        assert (
            self.scheduler.add_requests(request(request_id, prompt, max_tokens, priority=priority, cache_salt=salt))
            == []
        )
        self.expected[request_id] = expected_answer(prompt, min(max_tokens, self.max_model_len - len(prompt)))
        self.answers[request_id] = []

    def abort(self) -> None:
        request_id = self.chance.choice(list(self.scheduler.requests))
        self.scheduler.finish_requests([request_id])
        del self.expected[request_id]

    def step(self) -> None:
        if not self.scheduler.has_unfinished_requests():
            return
        step = self.scheduler.schedule()
        assert step.num_scheduled_tokens, "work is waiting and nothing is scheduled"
        assert step.total_num_scheduled_tokens == sum(step.num_scheduled_tokens.values())
        assert step.total_num_scheduled_tokens <= self.scheduler.max_num_batched_tokens
        for output in self.scheduler.update_from_output(step, self.worker.execute(step)).outputs:
            answer = self.answers[output.request_id]
            if not answer:
                self.first_tokens.append(int(output.request_id))
            answer += output.new_token_ids
            expected = self.expected[output.request_id]
            assert answer == expected[: len(answer)]
            if output.finish_reason is not None:
                assert answer == expected
                self.finished.add(output.request_id)

    def finish(self) -> None:
        for _ in range(20_000):
            if not self.scheduler.has_unfinished_requests():
                break
            self.step()
        assert self.finished == set(self.expected), "a request never ended"
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
        for output in scheduler.update_from_output(step, worker.execute(step)).outputs:
            if output.request_id not in first:
                first.append(output.request_id)
    assert first == [str(index) for index in range(20)]
