"""LLMEngine driven by hand, and beside an LLM's own requests."""

from __future__ import annotations

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
