"""Outputs that nobody waits for are gathered, and none is lost, doubled or late for those who wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fathom import LLM, SamplingParams
from fathom.core import outbox as outbox_module
from fathom.core.outbox import Outbox
from fathom.sampling_params import RequestOutputKind
from fathom.step import LogprobsArrays
from fathom.wire.messages import EngineCoreOutput, EngineCoreOutputs, FinishReason, SchedulerStats


def step(*outputs: EngineCoreOutput, urgent: bool = False, **more: Any) -> EngineCoreOutputs:
    return EngineCoreOutputs(list(outputs), urgent=urgent, **more)


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a test takes, no delay is over."""
    monkeypatch.setattr(outbox_module.time, "monotonic", lambda: 100.0)


def tokens(messages: list[EngineCoreOutputs]) -> list[dict[str, list[int]]]:
    return [{output.request_id: output.new_token_ids for output in message.outputs} for message in messages]


@pytest.mark.usefixtures("stopped_clock")
def test_tokens_are_gathered_until_somebody_waits_for_one() -> None:
    outbox = Outbox()
    assert outbox.add(step(EngineCoreOutput("a", [1]), EngineCoreOutput("b", [5]))) == []
    assert outbox.add(step(EngineCoreOutput("a", [2]), EngineCoreOutput("c", [9]))) == []
    (message,) = outbox.add(step(EngineCoreOutput("a", [3], FinishReason.STOP, 3), urgent=True))
    assert tokens([message]) == [{"a": [1, 2, 3], "b": [5], "c": [9]}]
    assert (message.outputs[0].finish_reason, message.outputs[0].stop_reason) == (FinishReason.STOP, 3)
    assert outbox.take() == []


@pytest.mark.usefixtures("stopped_clock")
def test_bare_tokens_are_gathered_in_order_with_what_else_is_told() -> None:
    outbox = Outbox()
    assert outbox.add(step(EngineCoreOutput("a", [1], num_cached_tokens=8), tokens={"b": [5]})) == []
    assert outbox.add(step(tokens={"a": [2], "b": [6], "c": [9]})) == []
    end = EngineCoreOutput("b", [7], FinishReason.LENGTH)
    (message,) = outbox.add(step(end, tokens={"a": [3], "c": [10]}, urgent=True))
    assert tokens([message]) == [{"a": [1, 2, 3], "b": [5, 6, 7]}]
    assert message.tokens == {"c": [9, 10]}
    assert [(output.num_cached_tokens, output.finish_reason) for output in message.outputs] == [(8, None), (0, 1)]


@pytest.mark.usefixtures("stopped_clock")
def test_a_prompt_s_logprobs_are_told_with_the_tokens_that_come_after_them() -> None:
    outbox = Outbox()
    scores = LogprobsArrays.joined([(np.array([[5, 6]]), np.array([[-1.0, -2.0]]), np.array([1]))])
    assert outbox.add(step(EngineCoreOutput("a", [1], prompt_logprobs=scores))) == []
    (message,) = outbox.add(step(EngineCoreOutput("a", [2], FinishReason.LENGTH), urgent=True))
    assert tokens([message]) == [{"a": [1, 2]}]
    assert message.outputs[0].prompt_logprobs is scores


@pytest.mark.usefixtures("stopped_clock")
def test_what_is_urgent_goes_out_as_it_is() -> None:
    outbox = Outbox()
    message = step(EngineCoreOutput("a", [1]), urgent=True)
    assert outbox.add(message) == [message]


def test_nothing_waits_longer_than_the_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    outbox, now = Outbox(), 100.0
    monkeypatch.setattr(outbox_module.time, "monotonic", lambda: now)
    assert outbox.add(step(EngineCoreOutput("a", [1]))) == []
    now += outbox_module.MAX_DELAY_S / 2
    assert outbox.add(step(EngineCoreOutput("a", [2]))) == []
    now += outbox_module.MAX_DELAY_S
    assert tokens(outbox.add(step(EngineCoreOutput("a", [3])))) == [{"a": [1, 2, 3]}]
    assert outbox.add(step(EngineCoreOutput("a", [4]))) == []  # the delay begins anew


@pytest.mark.usefixtures("stopped_clock")
def test_the_engine_s_numbers_are_told_of_their_own_step() -> None:
    outbox, stats = Outbox(), SchedulerStats(1, 0, 0.5, 0, 0, 0, 7)
    assert outbox.add(step(EngineCoreOutput("a", [1]))) == []
    messages = outbox.add(step(EngineCoreOutput("a", [2]), stats=stats, urgent=True))
    assert tokens(messages) == [{"a": [1]}, {"a": [2]}]
    assert [message.stats for message in messages] == [None, stats]


def scored(width: int, **token_of: int) -> EngineCoreOutputs:
    """A step of one token a request, the rows of logprobs in another order than the outputs; each says its token."""
    names = sorted(token_of, reverse=True)
    ids = np.array([[token_of[name]] * width for name in names], np.int32)
    outputs = [EngineCoreOutput(name, [token], logprobs_row=names.index(name)) for name, token in token_of.items()]
    return step(*outputs, logprobs=LogprobsArrays.joined([(ids, -ids, 2 * ids[:, 0])]))


@pytest.mark.usefixtures("stopped_clock")
def test_logprobs_are_gathered_with_their_tokens() -> None:
    outbox = Outbox()
    outbox.add(scored(2, a=1, b=7))
    outbox.add(step(EngineCoreOutput("c", [50])))
    outbox.add(scored(2, b=8, d=20))
    outbox.add(scored(2, a=2, b=9))
    last = scored(2, a=3)
    last.outputs.append(EngineCoreOutput("b", [], FinishReason.ERROR, error="it broke"))
    last.urgent = True
    (message,) = outbox.add(last)
    assert tokens([message]) == [{"a": [1, 2, 3], "b": [7, 8, 9], "c": [50], "d": [20]}]
    assert message.logprobs is not None
    assert len(message.logprobs) == 7
    for output in message.outputs:
        if output.request_id == "c":
            assert output.logprobs_row == -1
            continue
        rows = slice(output.logprobs_row, output.logprobs_row + len(output.new_token_ids))
        expected = np.array(output.new_token_ids)
        assert (message.logprobs.token_ids[rows] == expected[:, None]).all()
        assert (message.logprobs.logprobs[rows] == -expected[:, None]).all()
        assert (message.logprobs.ranks[rows] == 2 * expected).all()


@pytest.mark.usefixtures("stopped_clock")
@pytest.mark.parametrize("widths", [(1, 2), (40_000, 40_000)])
def test_logprobs_of_different_widths_or_many_bytes_stay_apart(widths: tuple[int, int]) -> None:
    outbox = Outbox()
    outbox.add(scored(widths[0], a=1))
    outbox.add(scored(widths[1], a=2))
    messages = outbox.take()
    assert tokens(messages) == [{"a": [1]}, {"a": [2]}]
    assert [message.logprobs.width for message in messages if message.logprobs] == list(widths)


@pytest.fixture(scope="module")
def llm(endless: Path) -> Any:
    with LLM(endless, num_threads=1, max_num_seqs=4, show_progress=False) as engine:
        yield engine


def messages_of(llm: LLM, params: SamplingParams) -> tuple[list[int], int]:
    """The answer of an engine process, and in how many messages it came."""
    engine, answer, steps = llm.llm_engine, [], 0
    engine.add_requests(["a"], [[5, 6, 7]], [params])
    while engine.has_unfinished_requests():
        steps += 1
        for output in engine.step():
            answer = output.outputs[0].token_ids
    return answer, steps


def test_a_final_answer_takes_fewer_messages_than_a_stream(llm: LLM) -> None:
    stream = SamplingParams(
        temperature=0.0, max_tokens=60, ignore_eos=True, output_kind=RequestOutputKind.CUMULATIVE, logprobs=1
    )
    final = stream.clone()
    final.output_kind = RequestOutputKind.FINAL_ONLY
    plain = final.clone()
    plain.logprobs = None
    watched = plain.clone()
    watched.stop = ["a text that does not come"]
    answer, steps = messages_of(llm, stream)
    assert steps == len(answer) == 60
    assert messages_of(llm, watched) == (answer, 60)
    for gathered, steps in (messages_of(llm, final), messages_of(llm, plain)):
        assert gathered == answer
        assert steps < 60


def test_gathered_logprobs_are_those_of_the_stream(llm: LLM) -> None:
    def logprobs(kind: RequestOutputKind) -> dict[str, list[Any]]:
        params = [
            SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, output_kind=kind, logprobs=k)
            for k, length in ((None, 60), (1, 60), (3, 40), (1, 20))
        ]
        engine, found = llm.llm_engine, {}
        engine.add_requests(list("abcd"), [[5, 6, 7], [5, 6], [7], [8, 9]], params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                (answer,) = output.outputs
                found[output.request_id] = [answer.token_ids, answer.cumulative_logprob, answer.logprobs]
        return found

    gathered = logprobs(RequestOutputKind.FINAL_ONLY)
    assert gathered == logprobs(RequestOutputKind.CUMULATIVE)
    assert [len(gathered[name][2] or []) for name in "abcd"] == [0, 60, 40, 20]
    for name, k in (("b", 1), ("c", 3), ("d", 1)):
        token_ids, total, positions = gathered[name]
        assert [next(iter(position)) for position in positions] == token_ids
        assert total == sum(position[token].logprob for token, position in zip(token_ids, positions, strict=True))
        assert {len(position) for position in positions} <= {k, k + 1}


def test_an_abort_and_a_control_call_find_nothing_held_back(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)
    endless = params.clone()
    endless.max_tokens = None
    expected, _ = messages_of(llm, params)
    engine = llm.llm_engine
    engine.add_requests(["a", "b"], [[5, 6, 7], [5, 6, 7]], [endless, params])
    engine.step()
    assert llm.get_stats()["num_running"] >= 1
    engine.abort_request(["a"])
    answers = {}
    while engine.has_unfinished_requests():
        answers |= {output.request_id: output.outputs[0].token_ids for output in engine.step()}
    assert answers == {"b": expected}
    assert llm.get_stats()["num_running"] == 0
    assert llm.get_stats()["kv_cache_usage"] == 0.0
