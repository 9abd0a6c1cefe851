"""LLMEngine driven by hand, and beside an LLM's own requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fathom import LLM, SamplingParams
from fathom.errors import EngineDeadError, ValidationError

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module", params=[False, True], ids=["in-process", "own process"])
def llm(request: pytest.FixtureRequest, tiny: Callable[[str], Path]) -> Iterator[LLM]:
    with LLM(str(tiny("llama-gqa")), num_threads=1, show_progress=False, multiprocess=request.param) as llm:
        yield llm


def test_requests_of_ones_own_do_not_disturb_generate(llm: LLM) -> None:
    engine = llm.llm_engine
    expected = [output.outputs[0].token_ids for output in llm.generate([[5], [6], [7]], GREEDY, use_tqdm=False)]
    for index in range(20):
        engine.add_request(f"own {index}", [8, index], SamplingParams(max_tokens=1 + 3 * index))
    outputs = llm.generate([[5], [6], [7]], GREEDY, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == expected
    while engine.has_unfinished_requests():
        engine.step()


def test_steps_give_every_token_of_every_request_once(llm: LLM) -> None:
    engine = llm.llm_engine
    for index in range(3):
        engine.add_request(str(index), [5, index], SamplingParams(temperature=0, max_tokens=2 + index, ignore_eos=True))
    lengths: dict[str, list[int]] = {"0": [], "1": [], "2": []}
    while engine.has_unfinished_requests():
        for output in engine.step():
            lengths[output.request_id].append(len(output.outputs[0].token_ids))
            assert output.finished == (len(output.outputs[0].token_ids) == 2 + int(output.request_id))
    assert lengths == {"0": [1, 2], "1": [1, 2, 3], "2": [1, 2, 3, 4]}
    assert engine.step() == []


def test_aborted_requests_give_their_last_outputs_and_no_more(llm: LLM) -> None:
    engine = llm.llm_engine
    engine.add_requests(["a", "b"], [[5], [6]], [SamplingParams(max_tokens=100, ignore_eos=True), GREEDY])
    while not engine.step():
        pass
    (last,) = engine.abort_request(["a", "never heard of"])
    assert (last.request_id, last.finished, last.outputs[0].finish_reason) == ("a", True, "abort")
    while engine.has_unfinished_requests():
        assert all(output.request_id == "b" for output in engine.step())
    stats = engine.get_stats()
    assert (stats["num_running"], stats["kv_cache_usage"]) == (0, 0.0)


def test_a_batch_with_one_wrong_prompt_queues_nothing(llm: LLM) -> None:
    with pytest.raises(ValidationError):
        llm.llm_engine.add_requests(["a", "b"], [[5], []], [GREEDY, GREEDY])
    assert not llm.llm_engine.has_unfinished_requests()
    assert llm.llm_engine.step() == []


def test_after_shutdown_every_call_says_so(tiny: Callable[[str], Path]) -> None:
    llm = LLM(str(tiny("llama-gqa")), num_threads=1, show_progress=False, multiprocess=False)
    llm.llm_engine.add_request("a", [5], GREEDY)
    llm.shutdown()
    for call in (llm.get_stats, llm.llm_engine.step, lambda: llm.generate([[5]], use_tqdm=False)):
        with pytest.raises(EngineDeadError, match="the engine was shut down"):
            call()


@pytest.mark.parametrize(
    ("options", "tokens"), [({"itl_target_ms": 0.001}, 32), ({"itl_target_ms": 1e9, "max_num_batched_tokens": 80}, 80)]
)
def test_steps_are_sized_when_the_engine_starts_and_it_is_said_why(
    tiny: Callable[[str], Path], caplog: pytest.LogCaptureFixture, options: dict[str, float], tokens: int
) -> None:
    with (
        caplog.at_level(logging.INFO, "fathom"),
        LLM(str(tiny("llama-gqa")), num_threads=1, multiprocess=False, max_num_seqs=16, **options) as llm,
    ):
        assert llm.llm_engine.config.scheduler.max_num_batched_tokens == tokens
        llm.llm_engine.add_request("a", [5] * 90, GREEDY)
        steps = 1
        while not llm.llm_engine.step():
            steps += 1
    assert f"chose max_num_batched_tokens={tokens}: a prefill step of it takes about" in caplog.text
    assert steps >= -(-90 // tokens)  # more, where the context counts


def test_steps_are_as_large_as_they_were_told_to_be(
    tiny: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "fathom"),
        LLM(str(tiny("llama-gqa")), num_threads=1, multiprocess=False, max_num_batched_tokens=512) as llm,
    ):
        assert llm.llm_engine.config.scheduler.max_num_batched_tokens == 512
    assert "a prefill step" not in caplog.text
