"""The scheduler's rules, one by one."""

from __future__ import annotations

import pytest

from fathom.core.request import extra_key
from fathom.step import ModelRunnerOutput
from fathom.wire.messages import FinishReason
from tests.core.helpers import every_output, kv_config, make_scheduler, request
from tests.core.simulator import SimulatedWorker, expected_answer


def run_to_end(scheduler, worker) -> dict[str, list[int]]:
    answers: dict[str, list[int]] = {}
    while scheduler.has_unfinished_requests():
        step = scheduler.schedule()
        assert step.num_scheduled_tokens
        for output in every_output(scheduler.update_from_output(step, worker.execute(step))):
            answers.setdefault(output.request_id, []).extend(output.new_token_ids)
        scheduler.check_invariants()
    return answers


def test_a_step_fills_the_token_budget_in_order_of_arrival() -> None:
    scheduler = make_scheduler(kv_config(64), max_num_batched_tokens=16)
    for index, length in enumerate((6, 6, 9)):
        scheduler.add_requests(request(str(index), list(range(index, index + length))))
    step = scheduler.schedule()
    assert step.num_scheduled_tokens == {"0": 6, "1": 6, "2": 4}
    assert step.annotation == "execute_context_3(16)_generation_0(0)"


def test_what_a_long_prompt_gets_in_the_end_is_of_its_step_too() -> None:
    scheduler = make_scheduler(kv_config(64), max_num_batched_tokens=16)
    scheduler.add_requests(request("long", list(range(30))))
    scheduler.add_requests(request("short", [40, 41]))
    step = scheduler.schedule()
    assert step.num_scheduled_tokens == {"long": 14, "short": 2}
    assert step.total_num_scheduled_tokens == 16
    assert step.annotation == "execute_context_2(16)_generation_0(0)"


def test_running_requests_come_before_waiting_ones() -> None:
    scheduler = make_scheduler(kv_config(64), max_num_batched_tokens=8)
    scheduler.add_requests(request("a", [1] * 10))
    first = scheduler.schedule()
    scheduler.update_from_output(first, ModelRunnerOutput(sampled_token_ids={}))
    scheduler.add_requests(request("b", [2] * 10))
    second = scheduler.schedule()
    assert second.num_scheduled_tokens == {"a": 2, "b": 6}
    scheduler.update_from_output(second, ModelRunnerOutput(sampled_token_ids={"a": 3}))
    third = scheduler.schedule()
    assert third.num_scheduled_tokens == {"a": 1, "b": 4}
    assert third.annotation == "execute_context_1(4)_generation_1(1)"


def test_without_chunked_prefill_a_prompt_that_does_not_fit_stops_admission() -> None:
    scheduler = make_scheduler(kv_config(64), max_num_batched_tokens=16, enable_chunked_prefill=False, max_model_len=16)
    for request_id, length in (("a", 10), ("b", 9), ("c", 2)):
        scheduler.add_requests(request(request_id, [ord(request_id)] * length))
    assert scheduler.schedule().num_scheduled_tokens == {"a": 10}  # c would fit, but b is before it


def test_long_prefill_token_threshold_caps_each_request() -> None:
    scheduler = make_scheduler(kv_config(64), max_num_batched_tokens=32, long_prefill_token_threshold=5)
    scheduler.add_requests(request("a", list(range(12))))
    scheduler.add_requests(request("b", list(range(20, 24))))
    assert scheduler.schedule().num_scheduled_tokens == {"a": 5, "b": 4}


def test_max_num_seqs_limits_the_rows() -> None:
    scheduler = make_scheduler(kv_config(64), max_num_seqs=2)
    for index in range(4):
        scheduler.add_requests(request(str(index), [index]))
    assert list(scheduler.schedule().num_scheduled_tokens) == ["0", "1"]


def test_priority_admits_the_lowest_value_first_and_ties_by_arrival() -> None:
    scheduler = make_scheduler(kv_config(64), max_num_seqs=2, scheduling_policy="priority")
    for request_id, priority in (("a", 5), ("b", 1), ("c", 1), ("d", 0)):
        scheduler.add_requests(request(request_id, [1], priority=priority))
    assert list(scheduler.schedule().num_scheduled_tokens) == ["d", "b"]


def test_the_last_in_order_is_preempted_and_gives_the_same_answer_later() -> None:
    kv = kv_config(9)  # 8 blocks of 4: two sequences of 20 tokens do not fit together
    scheduler = make_scheduler(kv, max_model_len=24)
    prompts = {"a": [1, 2, 3, 4, 5], "b": [6, 5, 4, 3, 2]}
    for request_id, prompt in prompts.items():
        scheduler.add_requests(request(request_id, prompt, max_tokens=15))
    answers = run_to_end(scheduler, SimulatedWorker(kv))
    assert scheduler.num_preemptions > 0
    assert answers == {request_id: expected_answer(prompt, 15) for request_id, prompt in prompts.items()}


def test_what_is_told_of_a_request_s_admission_is_the_first_one_s() -> None:
    """It finds itself in the prefix cache when it comes back, which nobody has saved anything by."""
    kv = kv_config(9)
    scheduler, worker = make_scheduler(kv, max_model_len=24), SimulatedWorker(kv)
    for request_id, prompt in {"a": [1, 2, 3, 4, 5], "b": [6, 5, 4, 3, 2]}.items():
        scheduler.add_requests(request(request_id, prompt, max_tokens=15, logprobs=0))
    told = []
    while scheduler.has_unfinished_requests():
        step = scheduler.schedule()
        outputs = scheduler.update_from_output(step, worker.execute(step)).outputs
        told += [output for output in outputs if output.request_id == "b"]
    assert scheduler.kv_cache.prefix_cache_hits > 0
    assert len(told) == 15
    assert [output.num_cached_tokens for output in told] == [0] * 15
    assert {output.scheduled_time for output in told} == {told[0].scheduled_time}
    assert [output.num_preemptions for output in told] == sorted(output.num_preemptions for output in told)
    assert told[-1].num_preemptions == scheduler.num_preemptions > 0


def test_priority_preempts_the_highest_value() -> None:
    kv = kv_config(9)
    scheduler = make_scheduler(kv, max_model_len=24, scheduling_policy="priority")
    scheduler.add_requests(request("late but urgent", [1, 2, 3, 4, 5], 15, priority=0))
    scheduler.add_requests(request("early", [6, 5, 4, 3, 2], 15, priority=9))
    worker, finished = SimulatedWorker(kv), []
    while scheduler.has_unfinished_requests():
        step = scheduler.schedule()
        outputs = scheduler.update_from_output(step, worker.execute(step)).outputs
        finished += [o.request_id for o in outputs if o.finish_reason is not None]
    assert scheduler.num_preemptions > 0
    assert finished == ["late but urgent", "early"]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9])
def test_a_repeated_prompt_hits_its_full_blocks_but_computes_at_least_one_token(length: int) -> None:
    kv = kv_config(64)
    scheduler, worker = make_scheduler(kv), SimulatedWorker(kv)
    prompt = list(range(1, length + 1))
    scheduler.add_requests(request("first", prompt, 1))
    run_to_end(scheduler, worker)
    scheduler.add_requests(request("second", prompt, 1))
    step = scheduler.schedule()
    cached = (length - 1) // 4 * 4
    assert step.new_requests[0].num_computed_tokens == cached
    assert step.num_scheduled_tokens == {"second": length - cached}
    (output,) = scheduler.update_from_output(step, worker.execute(step)).outputs
    assert output.new_token_ids == expected_answer(prompt, 1)
    assert output.num_cached_tokens == cached


def test_requests_of_one_step_share_the_prefix_that_the_first_of_them_computes() -> None:
    kv = kv_config(64)
    scheduler = make_scheduler(kv, max_num_batched_tokens=64)
    prompt = list(range(13))
    for index in range(4):
        scheduler.add_requests(request(str(index), prompt, 3))
    step = scheduler.schedule()
    assert step.num_scheduled_tokens == {"0": 13, "1": 1, "2": 1, "3": 1}
    worker = SimulatedWorker(kv)
    scheduler.update_from_output(step, worker.execute(step))
    answers = run_to_end(scheduler, worker)
    assert answers == {str(index): expected_answer(prompt, 3)[1:] for index in range(4)}


def test_a_cache_salt_keeps_equal_prompts_apart() -> None:
    kv = kv_config(64)
    scheduler, worker = make_scheduler(kv), SimulatedWorker(kv)
    for request_id, salt, cached in (("a", "x", 0), ("b", "y", 0), ("c", None, 0), ("d", "x", 8)):
        scheduler.add_requests(request(request_id, list(range(9)), 1, cache_salt=salt))
        step = scheduler.schedule()
        assert step.new_requests[0].num_computed_tokens == cached
        scheduler.update_from_output(step, worker.execute(step))


def test_salts_and_adapters_of_the_same_name_are_not_the_same() -> None:
    names = [(None, None), ("x", None), (None, "x"), ("x", "x"), ("", None), ("xlora:x", None)]
    assert len({extra_key(*name) for name in names}) == len(names)
    scheduler = make_scheduler(kv_config(64))
    for request_id, adapter in (("a", None), ("b", "x"), ("c", "y")):
        message = request(request_id, list(range(9)), 1)
        message.requests[0].lora_name = adapter
        scheduler.add_requests(message)
    assert [new.num_computed_tokens for new in scheduler.schedule().new_requests] == [0, 0, 0]


def test_prompt_logprobs_read_nothing_from_the_prefix_cache() -> None:
    kv = kv_config(64)
    scheduler, worker = make_scheduler(kv), SimulatedWorker(kv)
    scheduler.add_requests(request("a", list(range(9)), 1))
    run_to_end(scheduler, worker)
    scheduler.add_requests(request("b", list(range(9)), 1, prompt_logprobs=1))
    assert scheduler.schedule().num_scheduled_tokens == {"b": 9}


def test_reset_prefix_cache_forgets_prefixes() -> None:
    kv = kv_config(64)
    scheduler, worker = make_scheduler(kv), SimulatedWorker(kv)
    for cached in (0, 0):
        scheduler.add_requests(request("a", list(range(9)), 1))
        step = scheduler.schedule()
        assert step.new_requests[0].num_computed_tokens == cached
        scheduler.update_from_output(step, worker.execute(step))
        scheduler.kv_cache.reset_prefix_cache()


def test_hit_rate_counts_tokens() -> None:
    kv = kv_config(64)
    scheduler, worker = make_scheduler(kv), SimulatedWorker(kv)
    for request_id in ("a", "b"):
        scheduler.add_requests(request(request_id, list(range(10)), 1))
        run_to_end(scheduler, worker)
    stats = scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (20, 8)


def test_a_failed_request_leaves_nothing_in_the_prefix_cache_and_harms_nobody() -> None:
    kv = kv_config(64)
    scheduler, worker = make_scheduler(kv), SimulatedWorker(kv)
    scheduler.add_requests(request("bad", list(range(9))))
    scheduler.add_requests(request("good", list(range(20, 29)), 2))
    step = scheduler.schedule()
    result = worker.execute(step)
    del result.sampled_token_ids["bad"]
    result.errors["bad"] = "not finite"
    outputs = {o.request_id: o for o in scheduler.update_from_output(step, result).outputs}
    assert (outputs["bad"].finish_reason, outputs["bad"].error) == (FinishReason.ERROR, "not finite")
    assert outputs["good"].finish_reason is None
    scheduler.check_invariants()
    assert run_to_end(scheduler, worker)["good"] == expected_answer(list(range(20, 29)), 2)[1:]
    scheduler.add_requests(request("again", list(range(9))))
    assert scheduler.schedule().num_scheduled_tokens == {"again": 9}


def test_abort_works_wherever_a_request_is() -> None:
    scheduler = make_scheduler(kv_config(64), max_num_seqs=1)
    scheduler.add_requests(request("running", [1, 2, 3]))
    scheduler.add_requests(request("waiting", [1, 2, 3]))
    step = scheduler.schedule()
    assert scheduler.finish_requests(["waiting", "running", "unknown"]) == ["waiting", "running"]
    scheduler.check_invariants()
    assert not scheduler.has_unfinished_requests()
    # The step that was under way brings its token too late.
    assert scheduler.update_from_output(step, ModelRunnerOutput({"running": 1})).outputs == []
    assert scheduler.kv_cache.pool.usage == 0.0


@pytest.mark.parametrize("length", [0, 64, 65])
def test_a_prompt_that_can_never_fit_is_refused_on_arrival(length: int) -> None:
    scheduler = make_scheduler(kv_config(64), max_model_len=64)
    (output,) = scheduler.add_requests(request("a", [1] * length))
    assert output.finish_reason is FinishReason.ERROR
    assert str(length) in (output.error or "")
    assert not scheduler.has_unfinished_requests()


@pytest.mark.parametrize(
    ("params", "tokens", "reason", "stop_reason"),
    [
        ({"max_tokens": 2}, [5, 5], FinishReason.LENGTH, None),
        ({"stop_token_ids": [3]}, [5, 3], FinishReason.STOP, 3),
        ({"eos_token_ids": [3]}, [5, 3], FinishReason.STOP, None),
        ({"eos_token_ids": [3], "ignore_eos": True, "max_tokens": 3}, [3, 3, 3], FinishReason.LENGTH, None),
        ({"eos_token_ids": [3], "min_tokens": 2}, [3, 3], FinishReason.STOP, None),
    ],
)
def test_stop_rules(params: dict, tokens: list[int], reason: FinishReason, stop_reason: int | None) -> None:
    scheduler = make_scheduler(kv_config(64))
    scheduler.add_requests(request("a", [1], **({"max_tokens": 16} | params)))
    for index, token in enumerate(tokens):
        step = scheduler.schedule()
        (output,) = every_output(scheduler.update_from_output(step, ModelRunnerOutput({"a": token})))
        last = index == len(tokens) - 1
        assert output.finish_reason == (reason if last else None)
    assert output.stop_reason == stop_reason


def test_generation_ends_at_max_model_len() -> None:
    kv = kv_config(64)
    scheduler = make_scheduler(kv, max_model_len=12)
    scheduler.add_requests(request("a", [1, 2, 3], max_tokens=100))
    assert len(run_to_end(scheduler, SimulatedWorker(kv))["a"]) == 9


def test_sliding_window_layers_give_back_what_no_query_can_see() -> None:
    kv = kv_config(64, windows=(None, 6))
    scheduler, worker = make_scheduler(kv, max_model_len=64), SimulatedWorker(kv)
    prompt = [1, 2, 3, 4, 5]
    scheduler.add_requests(request("a", prompt, 40))
    most_used = 0
    answer = []
    while scheduler.has_unfinished_requests():
        step = scheduler.schedule()
        most_used = max(most_used, kv.num_blocks - 1 - scheduler.kv_cache.pool.num_free)
        for output in every_output(scheduler.update_from_output(step, worker.execute(step))):
            answer += output.new_token_ids
    assert answer == expected_answer(prompt, 40)
    assert most_used == 11 + 3  # 44 tokens in full; window 6 touches at most 3 blocks of 4


@pytest.mark.parametrize("window", [4, 5, 6, 8, 9, 10])
def test_a_hit_brings_back_all_that_the_next_token_s_window_reaches(window: int) -> None:
    kv = kv_config(64, windows=(None, window))
    scheduler, worker = make_scheduler(kv), SimulatedWorker(kv)  # which reads what it must
    prompt = list(range(17))
    for request_id, cached in (("a", 0), ("b", 16)):
        scheduler.add_requests(request(request_id, prompt, 2))
        step = scheduler.schedule()
        assert step.new_requests[0].num_computed_tokens == cached
        scheduler.update_from_output(step, worker.execute(step))
        assert run_to_end(scheduler, worker) == {request_id: expected_answer(prompt, 2)[1:]}


def test_a_prefix_loses_its_tail_before_its_head() -> None:
    kv = kv_config(6)  # 5 blocks of 4
    scheduler, worker = make_scheduler(kv, max_model_len=20), SimulatedWorker(kv)
    prompt = list(range(17))
    scheduler.add_requests(request("first", prompt, 1))
    run_to_end(scheduler, worker)
    scheduler.add_requests(request("other", [30, 31, 32, 33, 34, 35], 1))  # takes two blocks: the empty one and a tail
    run_to_end(scheduler, worker)
    scheduler.add_requests(request("again", prompt, 1))
    assert scheduler.schedule().new_requests[0].num_computed_tokens == 12


def test_stages_have_parts_of_the_requests_in_turn_and_are_told_of_tokens() -> None:
    kv = kv_config(60)
    scheduler = make_scheduler(kv, pipeline_parallel_size=2)
    worker = SimulatedWorker(kv)
    for index in range(3):
        scheduler.add_requests(request(str(index), [1, 2, index], max_tokens=3))
    first, second, third = scheduler.schedule(), scheduler.schedule(), scheduler.schedule()
    assert list(first.num_scheduled_tokens) == ["0", "1"]
    assert list(second.num_scheduled_tokens) == ["2"]
    assert not third.num_scheduled_tokens  # everybody waits for a token
    result = worker.execute(first)
    scheduler.update_from_output(first, result)
    fourth = scheduler.schedule()
    assert fourth.num_scheduled_tokens == {"0": 1, "1": 1}
    assert fourth.sampled_tokens == {key: (3, token) for key, token in result.sampled_token_ids.items()}
    result = worker.execute(second)
    scheduler.update_from_output(second, result)
    fifth = scheduler.schedule()
    assert fifth.num_scheduled_tokens == {"2": 1}
    assert fifth.sampled_tokens == {"2": (3, result.sampled_token_ids["2"])}  # of no token twice


def test_the_chunks_of_one_long_prompt_fill_the_stages() -> None:
    scheduler = make_scheduler(kv_config(60), pipeline_parallel_size=2, max_num_batched_tokens=8)
    scheduler.add_requests(request("a", list(range(20))))
    steps = [scheduler.schedule() for _ in range(4)]
    assert [step.num_scheduled_tokens.get("a", 0) for step in steps] == [8, 8, 4, 0]


@pytest.mark.parametrize("ends", [{"max_tokens": 2}, {"max_tokens": 100}], ids=["max_tokens", "context"])
def test_ahead_of_its_results_a_request_is_scheduled_to_its_end_and_not_beyond(ends: dict[str, int]) -> None:
    kv = kv_config(16)
    scheduler, worker = make_scheduler(kv, max_model_len=7), SimulatedWorker(kv)
    scheduler.add_requests(request("a", [1, 2, 3, 4, 5], **ends))
    steps = [scheduler.schedule() for _ in range(3)]
    assert [step.num_scheduled_tokens for step in steps] == [{"a": 5}, {"a": 1}, {}]
    outputs = [scheduler.update_from_output(step, worker.execute(step)).outputs[0] for step in steps[:2]]
    assert [output.new_token_ids for output in outputs] == [[token] for token in expected_answer([1, 2, 3, 4, 5], 2)]
    assert [output.finish_reason for output in outputs] == [None, FinishReason.LENGTH]
    assert not scheduler.has_unfinished_requests()


def test_a_generated_block_is_found_in_the_step_that_fills_it() -> None:
    kv = kv_config(64)
    scheduler, worker = make_scheduler(kv), SimulatedWorker(kv)
    scheduler.add_requests(request("a", [1, 2, 3], max_tokens=20))
    first = scheduler.requests["a"]
    while first.num_computed_tokens < 7:
        step = scheduler.schedule()
        scheduler.update_from_output(step, worker.execute(step))
    scheduler.add_requests(request("b", [*first.token_ids[:8], 50]))
    assert scheduler.schedule().num_scheduled_tokens == {"a": 1, "b": 1}
    assert scheduler.requests["b"].num_cached_tokens == 8


def test_a_prompt_has_the_room_that_those_who_generate_leave_wherever_it_stands() -> None:
    scheduler = make_scheduler(kv_config(64), max_num_batched_tokens=8, scheduling_policy="priority")
    for request_id in "ab":
        scheduler.add_requests(request(request_id, [1, 2], priority=1))
    step = scheduler.schedule()
    scheduler.update_from_output(step, ModelRunnerOutput(sampled_token_ids={"a": 3, "b": 3}))
    scheduler.add_requests(request("p", list(range(14)), priority=0))
    for _ in range(2):
        step = scheduler.schedule()
        assert step.num_scheduled_tokens == {"a": 1, "b": 1, "p": 6}
        scheduler.update_from_output(step, ModelRunnerOutput(sampled_token_ids={"a": 3, "b": 3}))
    assert scheduler.schedule().num_scheduled_tokens == {"a": 1, "b": 1, "p": 2}
