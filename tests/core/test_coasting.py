"""Requests that nobody looks at for some steps: all is as if every step looked at every request."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fathom.core.kv_cache.groups import longest_sequence
from fathom.core.scheduler.in_flight import MOST_STEPS
from fathom.core.scheduler.scheduler import Scheduler
from fathom.sampling_params import RequestOutputKind
from fathom.step import ModelRunnerOutput, SchedulerOutput
from fathom.wire.messages import AddRequests, EngineCoreOutput, FinishReason
from tests.core.helpers import every_output, kv_config, make_scheduler, request
from tests.core.simulator import VOCAB, SimulatedWorker, expected_answer


class Twins:
    """Two schedulers with the same to do, and what their steps give, which is to be the same.

    The requests of the second ask for logprobs, so that it looks at each of them in every step.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        kv = kv_config(chance.choice([30, 60, 200]), chance.choice([4, 8, 8, 40]), chance.choice([(None,), (None, 5)]))
        budget = chance.choice([16, 64])
        self.max_model_len = longest_sequence(kv.groups, kv.block_size, kv.num_blocks, budget, 60)
        options = {
            "max_model_len": self.max_model_len,
            "max_num_seqs": chance.choice([3, 12]),
            "max_num_batched_tokens": budget,
            "scheduling_policy": chance.choice(["fcfs", "priority"]),
            "enable_prefix_caching": chance.random() < 0.8,
        }
        self.schedulers = [make_scheduler(kv, **options) for _ in range(2)]
        self.workers = [SimulatedWorker(kv) for _ in range(2)]
        self.depth = chance.choice([1, 2, 3])
        self.in_flight: deque[list[tuple[SchedulerOutput, ModelRunnerOutput | None]]] = deque()
        self.seeds = [[chance.randrange(3) for _ in range(40)] for _ in range(3)]
        self.failures = chance.choice([0.0, 0.0, 0.02])

    def operate(self, number: int) -> None:
        action = self.chance.random()
        if action < 0.2:
            self.add(str(number))
        elif action < 0.24 and self.schedulers[0].requests:
            aborted = self.chance.choice(list(self.schedulers[0].requests))
            self.both(lambda scheduler: scheduler.finish_requests([aborted]))
            if self.chance.random() < 0.3:
                self.add(aborted)
        elif action < 0.245:
            self.both(lambda scheduler: scheduler.kv_cache.reset_prefix_cache())
        else:
            self.step()

    def add(self, request_id: str) -> None:
        chance = self.chance
        prompt = [*chance.choice(self.seeds)[: chance.randint(1, min(39, self.max_model_len - 2))], chance.randrange(3)]
        options: dict[str, Any] = {
            "max_tokens": chance.randint(1, 50),
            "priority": chance.randrange(3),
            "stop_token_ids": chance.sample(range(VOCAB), chance.choice([0, 0, 1])),
            "eos_token_ids": chance.sample(range(VOCAB), chance.choice([0, 0, 1])),
            "min_tokens": chance.choice([0, 0, 1]),
        }
        asking = request(request_id, prompt, **options, logprobs=0)
        messages = iter([request(request_id, prompt, **options), asking])
        self.both(lambda scheduler: scheduler.add_requests(next(messages)))

    def step(self) -> None:
        while len(self.in_flight) < self.depth and self.schedulers[0].has_unfinished_requests():
            steps = self.both(lambda scheduler: scheduler.schedule())
            if not steps[0].num_scheduled_tokens:
                assert self.in_flight, "work is waiting and nothing is scheduled"
                break
            self.launch(steps)
        if self.in_flight:
            self.land(self.in_flight.popleft())

    def launch(self, steps: list[SchedulerOutput]) -> None:
        chance = self.chance
        behind_a_failure = bool(self.in_flight) and self.in_flight[-1][0][1] is None
        if behind_a_failure or chance.random() < self.failures:
            for worker, step in zip(self.workers, steps, strict=True):
                worker.fail(step, reached=True)
            self.in_flight.append([(step, None) for step in steps])
        else:
            failing = [name for name in sorted(steps[0].num_scheduled_tokens) if chance.random() < self.failures / 2]
            self.in_flight.append(
                [(step, worker.execute(step, failing)) for step, worker in zip(steps, self.workers, strict=True)]
            )

    def land(self, landing: list[tuple[SchedulerOutput, ModelRunnerOutput | None]]) -> None:
        results = iter(landing)

        def update(scheduler: Scheduler) -> dict[str, Any]:
            step, result = next(results)
            outputs = (
                scheduler.fail_step(step, "failed") if result is None else scheduler.update_from_output(step, result)
            )
            return {output.request_id: told(output) for output in every_output(outputs)}

        self.both(update)
        if landing[0][1] is None:
            self.in_flight.clear()

    def both(self, operation: Any) -> list[Any]:
        results = [operation(scheduler) for scheduler in self.schedulers]
        found, expected = (plain(result) for result in results)
        assert found == expected
        stats, expected_stats = (scheduler.stats() for scheduler in self.schedulers)
        assert stats == expected_stats
        return results


def plain(result: Any) -> Any:
    """What a scheduler said, to be compared; without the requests' parameters."""
    built = msgspec.to_builtins(result, enc_hook=lambda array: array.tolist())
    if isinstance(result, SchedulerOutput):
        for new in built["new_requests"]:
            del new["sampling_params"]
    return built


def told(output: EngineCoreOutput) -> tuple[Any, ...]:
    return output.new_token_ids, output.finish_reason, output.stop_reason, output.error


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_steps_and_outputs_are_those_of_a_scheduler_that_looks_at_every_request(seed: int) -> None:
    twins = Twins(random.Random(seed))
    for number in range(200):
        twins.operate(number)
        twins.schedulers[0].check_invariants()
    while twins.schedulers[0].has_unfinished_requests() or twins.in_flight:
        twins.step()


def run(scheduler: Scheduler, worker: SimulatedWorker, message: AddRequests) -> list[tuple[bool, EngineCoreOutput]]:
    """One request to its end: of each of its outputs, whether nobody looked at it in the step, and what it says."""
    scheduler.add_requests(message)
    told = []
    while scheduler.has_unfinished_requests():
        step = scheduler.schedule()
        outputs = scheduler.update_from_output(step, worker.execute(step))
        told += [(bool(outputs.tokens), output) for output in every_output(outputs)]
    return told


def test_a_request_is_attended_to_for_its_first_token_and_its_end() -> None:
    kv = kv_config(20, block_size=8)
    told = run(make_scheduler(kv), SimulatedWorker(kv), request("a", [1, 2, 3], 16))
    assert [output.new_token_ids[0] for _, output in told] == expected_answer([1, 2, 3], 16)
    assert [index for index, (coasts, _) in enumerate(told) if not coasts] == [0, 15]
    assert told[-1][1].finish_reason is FinishReason.LENGTH


def test_a_request_that_coasts_gets_blocks_and_has_full_ones_found() -> None:
    kv = kv_config(20, block_size=8)
    scheduler, worker = make_scheduler(kv), SimulatedWorker(kv)
    scheduler.add_requests(request("a", [1, 2, 3], 16))
    new_blocks = {}
    for position in range(3, 18):  # tokens that have been computed after the step
        step = scheduler.schedule()
        scheduler.update_from_output(step, worker.execute(step))
        if step.new_block_ids:
            assert list(step.new_block_ids) == ["a"]
            new_blocks[position] = len(step.new_block_ids["a"][0])
    assert new_blocks == {9: 1, 17: 1}
    scheduler.add_requests(request("b", [1, 2, 3, *expected_answer([1, 2, 3], 15)]))
    scheduler.schedule()
    assert scheduler.requests["b"].num_cached_tokens == 16


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_large_blocks_do_not_have_tokens_kept_for_longer_than_that(depth: int) -> None:
    """An answer in one block, of which every token is known in the end, though few steps' are kept."""
    kv = kv_config(4, block_size=256)
    scheduler, worker = make_scheduler(kv, max_model_len=256), SimulatedWorker(kv)
    scheduler.add_requests(request("a", [1], 8 * MOST_STEPS))
    tokens = scheduler.requests["a"].token_ids
    steps = deque([scheduler.schedule()])
    while scheduler.has_unfinished_requests():
        while len(steps) < depth and (step := scheduler.schedule()).num_scheduled_tokens:
            steps.append(step)
        scheduler.update_from_output(steps[0], worker.execute(steps.popleft()))
        missing = scheduler.stats().num_steps - len(steps) - (len(tokens) - 1)
        assert missing <= MOST_STEPS + 1
    assert list(tokens[1:]) == expected_answer([1], 8 * MOST_STEPS)


@pytest.mark.parametrize("min_tokens", [0, 30])
def test_a_token_that_may_end_it_is_looked_at(min_tokens: int) -> None:
    kv = kv_config(8, block_size=16)
    answer = expected_answer([1], 40)
    end = answer[9]
    ends = [index for index, token in enumerate(answer) if token == end and index + 1 >= min_tokens]
    told = run(
        make_scheduler(kv), SimulatedWorker(kv), request("a", [1], 40, stop_token_ids=[end], min_tokens=min_tokens)
    )
    wanted = answer[: ends[0] + 1] if ends else answer
    assert [output.new_token_ids[0] for _, output in told] == wanted
    assert (told[-1][1].finish_reason, told[-1][1].stop_reason) == (FinishReason.STOP, end)


def test_logprobs_are_told_with_each_token() -> None:
    kv = kv_config(8, block_size=16)
    told = run(make_scheduler(kv), SimulatedWorker(kv), request("a", [1], 12, logprobs=0))
    assert not any(coasts for coasts, _ in told)


def test_whoever_waits_for_tokens_is_told_at_once_and_others_are_not() -> None:
    for kind, urgent in ((RequestOutputKind.DELTA, True), (RequestOutputKind.FINAL_ONLY, False)):
        scheduler = make_scheduler(kv_config(8, block_size=16), disable_log_stats=True)
        scheduler.add_requests(request("a", [1], 12, output_kind=kind))
        found = []
        for _ in range(4):
            step = scheduler.schedule()
            outputs = scheduler.update_from_output(step, ModelRunnerOutput({"a": 1}))
            found.append((bool(outputs.tokens), outputs.urgent))
        assert found == [(False, True), *[(True, urgent)] * 3]


def test_when_the_last_that_somebody_waits_for_has_ended_tokens_can_wait_again() -> None:
    scheduler = make_scheduler(kv_config(8, block_size=16), disable_log_stats=True)
    scheduler.add_requests(request("watched", [1], 5, output_kind=RequestOutputKind.DELTA))
    scheduler.add_requests(request("b", [1], 12, output_kind=RequestOutputKind.FINAL_ONLY))
    urgent = []
    while scheduler.has_unfinished_requests():
        step = scheduler.schedule()
        urgent.append(
            scheduler.update_from_output(step, ModelRunnerOutput(dict.fromkeys(step.num_scheduled_tokens, 1))).urgent
        )
    assert urgent == [True] * 5 + [False] * 6 + [True]
