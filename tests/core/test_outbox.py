"""Outputs that nobody waits for are gathered, and none is lost, doubled or late for those who wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fathom import LLM, SamplingParams
from fathom.core import outbox as outbox_module
from fathom.core.outbox import Outbox
from fathom.params import RequestOutputKind
from fathom.step import LogprobsArrays
from fathom.wire.messages import EngineCoreOutput, EngineCoreOutputs, FinishReason


def step(*outputs: EngineCoreOutput, urgent: bool = False, **more: Any) -> EngineCoreOutputs:
    return EngineCoreOutputs(list(outputs), urgent=urgent, **more)


def tokens(messages: list[EngineCoreOutputs]) -> list[dict[str, list[int]]]:
    return [{output.request_id: output.new_token_ids for output in message.outputs} for message in messages]


def test_tokens_are_gathered_until_somebody_waits_for_one() -> None:
    outbox = Outbox()
    assert outbox.add(step(EngineCoreOutput("a", [1]), EngineCoreOutput("b", [5]))) == []
    assert outbox.add(step(EngineCoreOutput("a", [2]), EngineCoreOutput("c", [9]))) == []
    (message,) = outbox.add(step(EngineCoreOutput("a", [3], FinishReason.STOP, 3), urgent=True))
    assert tokens([message]) == [{"a": [1, 2, 3], "b": [5], "c": [9]}]
    assert (message.outputs[0].finish_reason, message.outputs[0].stop_reason) == (FinishReason.STOP, 3)
    assert outbox.take() == []


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


def test_steps_with_logprobs_stay_apart() -> None:
    row = LogprobsArrays(np.zeros((1, 1), np.int32), np.zeros((1, 1), np.float32), np.ones(1, np.int32))
    outbox = Outbox()
    outbox.add(step(EngineCoreOutput("a", [1], logprobs_row=0), logprobs=row))
    outbox.add(step(EngineCoreOutput("a", [2], logprobs_row=0), logprobs=row))
    assert tokens(outbox.take()) == [{"a": [1]}, {"a": [2]}]


@pytest.fixture(scope="module")
def llm(tiny: Any) -> Any:
    folder: Path = tiny("llama-gqa")
    with LLM(folder, num_threads=1, max_model_len=128, show_progress=False) as engine:
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
    assert messages_of(llm, final)[0] == answer
    gathered, steps = messages_of(llm, plain)
    assert gathered == answer
    assert steps < 60


def test_an_abort_and_a_control_call_find_nothing_held_back(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)
    expected, _ = messages_of(llm, params)
    engine = llm.llm_engine
    engine.add_requests(["a", "b"], [[5, 6, 7], [5, 6, 7]], [params, params])
    engine.step()
    assert llm.get_stats()["num_running"] == 2
    engine.abort_request(["a"])
    answers = {}
    while engine.has_unfinished_requests():
        answers |= {output.request_id: output.outputs[0].token_ids for output in engine.step()}
    assert answers == {"b": expected}
    assert llm.get_stats()["kv_cache_usage"] == 0.0
