"""OutputProcessor: what callers are told after each step, for answers alone and for several to one prompt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fathom.errors import ValidationError
from fathom.frontend.input_processor import ProcessedRequest
from fathom.frontend.output_processor import OutputProcessor
from fathom.outputs import CompletionOutput
from fathom.sampling_params import RequestOutputKind, SamplingParams
from fathom.step import LogprobsArrays
from fathom.wire.messages import EngineCoreOutput, EngineCoreOutputs, FinishReason
from tests.frontend import tiny_tokenizers

TOKENIZER = tiny_tokenizers.byte_level()
TEXT = "one two three"
IDS = TOKENIZER.encode(TEXT, add_special_tokens=False)


def opened(*ids: str, **params: Any) -> OutputProcessor:
    processor = OutputProcessor(TOKENIZER)
    processor.add_requests([request(name, **params) for name in ids])
    return processor


def request(request_id: str, **params: Any) -> ProcessedRequest:
    return ProcessedRequest(request_id, "prompt", [5, 6], SamplingParams(**params), seed=0, arrival_time=1.0)


def step(*outputs: EngineCoreOutput, logprobs: LogprobsArrays | None = None) -> EngineCoreOutputs:
    return EngineCoreOutputs(list(outputs), logprobs)


def told(processor: OutputProcessor, *outputs: EngineCoreOutput) -> list[tuple[str, bool, list[CompletionOutput]]]:
    """One step's RequestOutputs in short."""
    result = processor.process_outputs(step(*outputs))
    return [(output.request_id, output.finished, output.outputs) for output in result.request_outputs]


def test_outputs_after_an_abort_are_ignored_and_the_id_is_free_again() -> None:
    processor = opened("a")
    told(processor, EngineCoreOutput("a", IDS[:1]))
    engine_ids, (last,) = processor.abort(["a", "unknown"])
    assert engine_ids == ["a"]
    assert (last.finished, last.outputs[0].finish_reason, last.outputs[0].token_ids) == (True, "abort", IDS[:1])
    assert told(processor, EngineCoreOutput("a", IDS[1:2])) == []
    assert processor.num_unfinished == 0
    processor.add_requests([request("a")])
    assert "a" in processor


def test_bare_tokens_leave_what_an_output_told_as_it_was() -> None:
    processor = opened("a")
    told(processor, EngineCoreOutput("a", IDS[:1], num_cached_tokens=16, num_preemptions=2, scheduled_time=7.0))
    result = processor.process_outputs(EngineCoreOutputs([], tokens={"a": IDS[1:3], "gone": IDS[:1]}))
    (output,) = result.request_outputs
    assert output.outputs[0].token_ids == IDS[:3]
    assert output.metrics is not None
    assert (output.num_cached_tokens, output.metrics.num_preemptions, output.metrics.scheduled_time) == (16, 2, 7.0)
    assert (output.finished, output.metrics.num_generation_tokens) == (False, 3)


def test_a_stop_string_among_bare_tokens_ends_the_answer() -> None:
    processor = opened("a", stop="two")
    told(processor, EngineCoreOutput("a", IDS[:1]))
    result = processor.process_outputs(EngineCoreOutputs([], tokens={"a": [*IDS[1:], 9]}))
    assert result.to_abort == ["a"]
    (output,) = result.request_outputs
    assert (output.finished, output.outputs[0].stop_reason) == (True, "two")
    assert output.metrics is not None
    assert output.metrics.num_generation_tokens == len(output.outputs[0].token_ids) < len(IDS) + 1
    assert processor.num_unfinished == 0


def test_a_stop_string_is_cut_off_and_the_engine_told_once() -> None:
    processor = opened("a", stop="two")
    aborts = []
    for token_id in [*IDS, 9]:
        result = processor.process_outputs(step(EngineCoreOutput("a", [token_id])))
        aborts += result.to_abort
        if result.to_abort:
            answer = result.request_outputs[0].outputs[0]
            assert (answer.text, answer.finish_reason, answer.stop_reason) == ("one ", "stop", "two")
            assert answer.token_ids == IDS[: len(answer.token_ids)]
    assert aborts == ["a"]


def test_a_stop_string_in_the_last_token_needs_no_abort() -> None:
    processor = opened("a", stop="three")
    result = processor.process_outputs(step(EngineCoreOutput("a", IDS, FinishReason.LENGTH)))
    assert result.to_abort == []
    assert result.request_outputs[0].outputs[0].finish_reason == "stop"


def test_deltas_of_two_answers_keep_apart_and_only_the_last_one_finishes() -> None:
    processor = opened("a", n=2, output_kind=RequestOutputKind.DELTA)
    assert processor.unfinished_ids() == ["a"]
    texts = {0: "", 1: ""}
    finished = []
    for position, token_id in enumerate(IDS):
        reason = FinishReason.LENGTH if position == len(IDS) - 1 else None
        outputs = [EngineCoreOutput("1_a", [token_id], reason)]
        if position < 2:
            outputs.append(EngineCoreOutput("0_a", [token_id], FinishReason.LENGTH if position == 1 else None))
        for request_id, done, (answer,) in told(processor, *outputs):
            assert request_id == "a"
            texts[answer.index] += answer.text
            finished.append(done)
    assert texts == {0: TOKENIZER.decode(IDS[:2]), 1: TEXT}
    assert finished == [False] * (len(finished) - 1) + [True]
    assert "a" not in processor


def test_final_only_waits_for_all_answers_and_orders_them() -> None:
    processor = opened("a", n=3, output_kind=RequestOutputKind.FINAL_ONLY)
    assert told(processor, EngineCoreOutput("2_a", IDS[:2], FinishReason.STOP)) == []
    assert told(processor, EngineCoreOutput("0_a", IDS[:1])) == []
    ((_, finished, answers),) = told(
        processor,
        EngineCoreOutput("0_a", IDS[1:3], FinishReason.LENGTH),
        EngineCoreOutput("1_a", [], FinishReason.ERROR, error="it broke"),
    )
    assert finished
    assert [answer.index for answer in answers] == [0, 1, 2]
    assert [answer.token_ids for answer in answers] == [IDS[:3], [], IDS[:2]]
    assert [answer.error for answer in answers] == [None, "it broke", None]
    assert [answer.finish_reason for answer in answers] == ["length", "error", "stop"]


def test_aborting_gives_the_answers_that_are_done_beside_the_cut_ones() -> None:
    processor = opened("a", n=2, output_kind=RequestOutputKind.FINAL_ONLY)
    told(processor, EngineCoreOutput("1_a", IDS, FinishReason.STOP), EngineCoreOutput("0_a", IDS[:1]))
    engine_ids, (last,) = processor.abort(["a"])
    assert engine_ids == ["0_a"]
    assert [answer.finish_reason for answer in last.outputs] == ["abort", "stop"]
    assert processor.num_unfinished == 0
    assert "a" not in processor


@pytest.mark.parametrize(
    ("there", "n", "new", "new_n"),
    [("a", 1, ["a"], 1), ("a", 2, ["a"], 1), ("a", 2, ["1_a"], 1), ("1_a", 1, ["a"], 2), ("x", 1, ["a", "a"], 1)],
)
def test_an_id_in_use_refuses_the_whole_batch(there: str, n: int, new: list[str], new_n: int) -> None:
    processor = opened(there, n=n)
    with pytest.raises(ValidationError, match="in use"):
        processor.add_requests([request("free"), *(request(name, n=new_n) for name in new)])
    assert processor.unfinished_ids() == [there]


def test_a_batch_may_not_name_an_answer_of_another_of_its_requests() -> None:
    with pytest.raises(ValidationError, match="'0_a' is in use"):
        OutputProcessor(TOKENIZER).add_requests([request("a", n=2), request("0_a")])


def test_each_answer_gets_its_own_row_of_logprobs() -> None:
    processor = opened("a", "b", logprobs=1)
    processor.add_requests([request("plain")])
    token_ids = np.array([[IDS[0], 7], [IDS[1], IDS[1]]])
    rows = LogprobsArrays.joined([(token_ids, np.array([[-1.5, -0.5], [-0.25, -0.25]]), np.array([2, 1]))])
    result = processor.process_outputs(
        step(
            EngineCoreOutput("b", [IDS[1]], logprobs_row=1),
            EngineCoreOutput("plain", [3]),
            EngineCoreOutput("a", [IDS[0]], logprobs_row=0),
            logprobs=rows,
        )
    )
    answers = {output.request_id: output.outputs[0] for output in result.request_outputs}
    assert answers["plain"].logprobs is None
    assert answers["a"].cumulative_logprob == -1.5
    (position,) = answers["a"].logprobs or []
    assert position is not None
    assert {key: (entry.logprob, entry.rank) for key, entry in position.items()} == {IDS[0]: (-1.5, 2), 7: (-0.5, 1)}
    (position,) = answers["b"].logprobs or []
    assert position is not None
    assert {key: (entry.logprob, entry.rank) for key, entry in position.items()} == {IDS[1]: (-0.25, 1)}
