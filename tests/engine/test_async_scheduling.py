"""Steps scheduled ahead give what steps one by one give: tokens, logprobs, ends, and errors.

Also where tokens stay on the device: a CPU that hands out what it has found only to those who wait for it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fathom import LLM, AsyncLLM, EngineConfig, RequestOutput, RequestOutputKind, SamplingParams
from fathom.core.engine_core import EngineCore, LaunchedStep
from fathom.worker.sample.interface import AdapterLogitsProcessor
from tests.client.processes import PATIENCE_S, comes_true
from tests.core.helpers import request
from tests.worker.delayed_device import DelayedDevice

PROMPTS = [[3 + (11 * i * (k + 1) + k) % 500 for i in range(5 + 9 * k)] for k in range(7)]
PROMPTS += [[*PROMPTS[6][:40], 9, 9, k] for k in range(3)]  # a common prefix


class FailsAfter(AdapterLogitsProcessor):
    """Raises once a request that asks for it has so many tokens."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        limit = (params.extra_args or {}).get("fails_after")
        return None if limit is None else lambda output_ids, row: row if len(output_ids) < limit else row[:0]


class NotesThread(AdapterLogitsProcessor):
    """Writes down in which thread each step's tokens are chosen."""

    seen: ClassVar[list[int]] = []

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        def note(output_ids: list[int], row: Any) -> Any:
            self.seen.append(threading.get_ident())
            return row

        return note


@pytest.fixture(scope="module")
def folder(tiny: Callable[[str], Path]) -> Path:
    return tiny("llama-gqa")


def make_llm(folder: Path, async_scheduling: bool, **options: Any) -> LLM:
    defaults = {"multiprocess": False, "num_threads": 1, "max_num_seqs": 16, "max_model_len": 128, "seed": 0}
    defaults["show_progress"] = False
    return LLM(str(folder), async_scheduling=async_scheduling, **(defaults | options))


def make_delayed_llm(folder: Path, async_scheduling: bool, **options: Any) -> LLM:
    """One whose device is a DelayedDevice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fathom.worker.worker.make_device", DelayedDevice)
        return make_llm(folder, async_scheduling, **options)


EVERY_KIND = pytest.mark.parametrize(
    "make",
    [
        partial(make_llm, async_scheduling=False),
        partial(make_llm, async_scheduling=True),
        partial(make_delayed_llm, async_scheduling=True),
    ],
    ids=["sync", "async", "delayed"],
)


@pytest.fixture(scope="module")
def options(folder: Path) -> dict[str, Any]:
    """A pool so small that requests are preempted."""
    with make_llm(folder, False) as llm:
        bytes_per_token = sum(spec.bytes_per_token for spec in llm.collective_rpc("get_kv_cache_specs")[0])
    return {"kv_cache_memory_bytes": 260 * bytes_per_token, "max_num_batched_tokens": 32}


@pytest.fixture(scope="module")
def llms(folder: Path, options: dict[str, Any]) -> Iterator[list[LLM]]:
    """A synchronous engine, one that schedules ahead, and one whose device is delayed, with a processor of ours."""
    options = {"logits_processors": [f"{__name__}:FailsAfter"], **options}
    with (
        make_llm(folder, False, **options) as plain,
        make_llm(folder, True, **options) as ahead,
        make_delayed_llm(folder, True, **options) as delayed,
    ):
        yield [plain, ahead, delayed]


@pytest.fixture(scope="module")
def delayed_llms(folder: Path, options: dict[str, Any]) -> Iterator[list[LLM]]:
    """Engines whose device is delayed, without any processor, which would have every token waited for."""
    with (
        make_delayed_llm(folder, False, **options) as in_turn,
        make_delayed_llm(folder, True, **options) as ahead,
    ):
        yield [in_turn, ahead]


def answers_of(outputs: list[RequestOutput]) -> list[Any]:
    return [
        (
            output.prompt_token_ids,
            output.finished,
            a.index,
            a.token_ids,
            a.text,
            a.finish_reason,
            a.stop_reason,
            a.error,
        )
        for output in outputs
        for a in output.outputs
    ]


def logprobs_of(outputs: list[RequestOutput]) -> dict[tuple[int, ...], float]:
    """(request, answer or -1 for the prompt, position, token) -> logprob."""
    lists = {(i, -1): output.prompt_logprobs for i, output in enumerate(outputs)}
    lists |= {(i, a.index): a.logprobs for i, output in enumerate(outputs) for a in output.outputs}
    return {
        (*key, position, token): entry.logprob
        for key, positions in lists.items()
        for position, entries in enumerate(positions or [])
        for token, entry in (entries or {}).items()
    }


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0, "max_tokens": 30, "ignore_eos": True},
        {"temperature": 0.0, "max_tokens": 1},
        {"temperature": 1.0, "n": 4, "seed": 11, "top_p": 0.95, "max_tokens": 25},
        {"temperature": 1.0, "seed": 3, "stop_token_ids": list(range(0, 500, 7)), "max_tokens": 30},
        {"temperature": 1.0, "seed": 3, "stop_token_ids": list(range(0, 500, 7)), "min_tokens": 5, "max_tokens": 30},
        {"temperature": 1.0, "seed": 5, "stop": ["a", "e"], "max_tokens": 30, "ignore_eos": True},
        {"temperature": 1.0, "seed": 7, "logprobs": 3, "prompt_logprobs": 2, "max_tokens": 20},
        {"temperature": 1.0, "seed": 9, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "max_tokens": 20},
        {"temperature": 0.0, "max_tokens": 1000, "ignore_eos": True},
        {"temperature": 1.0, "seed": 8, "bad_words": ["a", "th", "ing"], "presence_penalty": 0.3, "max_tokens": 30},
        {"temperature": 1.0, "seed": 6, "min_p": 0.05, "top_k": 40, "logit_bias": {5: 2.0, 9: -3.0}, "max_tokens": 30},
        {"temperature": 0.0, "max_tokens": 20, "extra_args": {"fails_after": 6}, "ignore_eos": True},
    ],
    ids=str,
)
def test_answers_are_the_same(llms: list[LLM], delayed_llms: list[LLM], params: dict[str, Any]) -> None:
    mixed = [SamplingParams(**params) for _ in PROMPTS]
    mixed[1] = SamplingParams(
        temperature=0.0, max_tokens=40, ignore_eos=True
    )  # one that goes on when others have ended
    others = llms[1:] if "extra_args" in params else [*llms[1:], *delayed_llms]
    plain = llms[0].generate(PROMPTS, mixed, use_tqdm=False)
    for llm in others:
        ahead = llm.generate(PROMPTS, mixed, use_tqdm=False)
        assert answers_of(ahead) == answers_of(plain)
        # Dense products of other sizes round differently, and the steps are not composed alike.
        assert logprobs_of(ahead) == pytest.approx(logprobs_of(plain), abs=1e-4)


def test_requests_were_preempted_and_nothing_is_left(llms: list[LLM], delayed_llms: list[LLM]) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    for llm in [*llms, *delayed_llms]:
        llm.generate(PROMPTS, params, use_tqdm=False)
        llm.llm_engine.step()
        stats = llm.get_stats()
        assert stats["num_preemptions"] > 0
        assert (stats["num_running"], stats["num_waiting"], stats["kv_cache_usage"]) == (0, 0, 0.0)
        assert llm.llm_engine.engine_core.call("check_invariants")


@EVERY_KIND
def test_a_prompt_and_its_answer_are_cached_to_the_last_full_block(folder: Path, make: Callable[..., LLM]) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=25, ignore_eos=True)
    with make(folder, block_size=8) as llm:
        (first,) = llm.generate([PROMPTS[1]], params, use_tqdm=False)  # 14 tokens, and 24 computed ones of the answer
        turn = [*PROMPTS[1], *first.outputs[0].token_ids, 5]
        (second,) = llm.generate([turn], params, use_tqdm=False)
    assert second.num_cached_tokens == (14 + 24) // 8 * 8


@EVERY_KIND
def test_an_abort_in_mid_flight_gives_its_rows_and_blocks_to_others(folder: Path, make: Callable[..., LLM]) -> None:
    long = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    with make(folder, max_num_seqs=2) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(PROMPTS[:3], long, use_tqdm=False)]
        engine = llm.llm_engine
        engine.add_requests(["a", "b"], PROMPTS[:2], [long, long])
        for _ in range(10):
            engine.step()
        engine.abort_request(["a"])
        engine.add_requests(["a"], [PROMPTS[2]], [long])  # the same id at once
        answers = {}
        while engine.has_unfinished_requests():
            answers |= {output.request_id: output.outputs[0].token_ids for output in engine.step()}
        assert answers == {"b": expected[1], "a": expected[2]}


@EVERY_KIND
def test_a_step_that_raises_ends_its_requests_and_no_others(
    folder: Path, make: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request that waits for the second row is in flight behind the failed step, or not yet scheduled."""
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    short = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    with make(folder, max_num_seqs=2, enforce_eager=True) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(PROMPTS[:3], params, use_tqdm=False)]
        llm.reset_prefix_cache()
        runner = llm.llm_engine.engine_core._core.executor._worker._runner
        model, steps = runner.model, []

        def failing(*args: Any) -> Any:
            steps.append(args)
            if len(steps) == 7:  # a, b: a prefill and five decodes; in the next step there is only a
                raise RuntimeError("out of luck")
            return model(*args)

        failing.compute_logits = model.compute_logits  # type: ignore[attr-defined]
        runner.model = failing
        engine = llm.llm_engine
        engine.add_requests(["a", "b"], PROMPTS[:2], [params, short])
        outputs = []
        while len(steps) < 6:
            outputs += engine.step()
        engine.add_requests(["c"], [PROMPTS[2]], [params])
        while engine.has_unfinished_requests():
            outputs += engine.step()
        last = {output.request_id: output.outputs[0] for output in outputs}
        assert last["a"].finish_reason == "error"
        assert last["b"].token_ids == expected[1][:6]
        assert last["c"].token_ids in ([], expected[2])
        # The engine and its prefix cache are sound.
        again = [output.outputs[0].token_ids for output in llm.generate(PROMPTS[:3], params, use_tqdm=False)]
        assert again == expected
        assert llm.get_stats()["kv_cache_usage"] == 0.0


def test_no_step_runs_beside_what_is_left_of_one_that_raised(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its requests are ended; the only one that is left is run on the caller's thread, the step behind on another."""
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    main, num_steps, inside, most = threading.get_ident(), 0, [], 0

    def is_waiting() -> bool:
        return sys._current_frames()[main].f_code is threading.Condition.wait.__code__

    with make_llm(folder, True, max_num_seqs=2, enforce_eager=True) as llm:
        expected = llm.generate(PROMPTS[2], params, use_tqdm=False)[0].outputs[0].token_ids
        runner = llm.llm_engine.engine_core._core.executor._worker._runner
        model = runner.model

        def failing(*args: Any) -> Any:
            nonlocal num_steps, most
            num_steps += 1
            number = num_steps
            inside.append(number)
            most = max(most, len(inside))
            try:
                if number == 5:
                    raise RuntimeError("out of luck")
                if number == 6:
                    assert comes_true(lambda: "a step failed" in caplog.text)
                    assert comes_true(lambda: len(inside) > 1 or is_waiting())
                return model(*args)
            finally:
                inside.remove(number)

        failing.compute_logits = model.compute_logits  # type: ignore[attr-defined]
        runner.model = failing
        a, b, c = llm.generate(PROMPTS[:3], params, use_tqdm=False)
        assert [a.outputs[0].finish_reason, b.outputs[0].finish_reason] == ["error", "error"]
        assert c.outputs[0].token_ids == expected
    assert most == 1


def test_streams_of_an_engine_process_that_schedules_ahead(folder: Path, llms: list[LLM]) -> None:
    params = SamplingParams(
        temperature=1.0, seed=2, max_tokens=30, stop=["a"], output_kind=RequestOutputKind.FINAL_ONLY
    )
    expected = [output.outputs[0].token_ids for output in llms[0].generate(PROMPTS, params, use_tqdm=False)]

    async def collect(engine: AsyncLLM, index: int) -> list[int]:
        return [o async for o in engine.generate(PROMPTS[index], params, str(index))][-1].outputs[0].token_ids

    async def run() -> list[list[int]]:
        options = {"num_threads": 1, "max_model_len": 128, "async_scheduling": True, "show_progress": False}
        engine = await AsyncLLM.start(EngineConfig.from_options(model=str(folder), **options))
        try:
            answers = await asyncio.gather(*(collect(engine, index) for index in range(len(PROMPTS))))
            assert (await engine.get_stats())["kv_cache_usage"] == 0.0
            return answers
        finally:
            engine.shutdown()

    assert asyncio.run(asyncio.wait_for(run(), PATIENCE_S)) == expected


@pytest.mark.parametrize(("async_scheduling", "most"), [(False, 1), (True, 2)])
def test_how_many_steps_are_under_way(
    folder: Path, monkeypatch: pytest.MonkeyPatch, async_scheduling: bool, most: int
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    under_way: list[int] = []
    finish = EngineCore._finish_step

    def noting_finish(core: EngineCore, step: LaunchedStep) -> Any:
        under_way.append(1 + len(core._in_flight))
        return finish(core, step)

    monkeypatch.setattr(EngineCore, "_finish_step", noting_finish)
    with make_llm(folder, async_scheduling) as llm:
        llm.generate(PROMPTS[:2], params, use_tqdm=False)
        assert under_way == [most] * 7 + [1]
        under_way.clear()
        llm.generate(PROMPTS[:1], params, use_tqdm=False)
        assert under_way == [1] * 8


def test_the_time_of_steps_that_overlap_is_counted_once(folder: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    with make_llm(folder, True, disable_log_stats=False) as llm:
        engine, core = llm.llm_engine, llm.llm_engine.engine_core._core
        engine.add_requests(["a", "b"], PROMPTS[:2], [params, params])
        begin, model_s = time.perf_counter(), []
        while core.has_work():
            step = core.step().step
            assert step is not None
            model_s.append(step.model_s)
        assert len(model_s) == 20
        assert sum(model_s) <= time.perf_counter() - begin


def test_a_step_whose_requests_were_aborted_is_work_until_it_has_ended(folder: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    with make_llm(folder, True) as llm:
        engine, core = llm.llm_engine, llm.llm_engine.engine_core._core
        engine.add_requests(["a", "b"], PROMPTS[:2], [params, params])
        for _ in range(3):
            engine.step()
        engine.abort_request(["a", "b"])
        assert not core.scheduler.has_unfinished_requests()
        assert core.has_work()
        core.step()
        assert not core.has_work()
        assert llm.get_stats()["kv_cache_usage"] == 0.0


def test_what_the_engine_refuses_is_told_at_once(folder: Path) -> None:
    """With nothing else to do, and beside a request of whose tokens nobody waits."""
    with make_llm(folder, False) as llm:
        core = llm.llm_engine.engine_core._core
        too_long = request("a", [5] * 128)
        core.add_requests(too_long)
        assert core.has_work()
        assert [output.request_id for output in core.step().outputs] == ["a"]
        assert not core.has_work()
        core.add_requests(request("b", [5, 6], 9, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY))
        assert [core.step().urgent for _ in range(3)] == [True, False, False]
        core.add_requests(too_long)
        outputs = core.step()
        assert [output.request_id for output in outputs.outputs if output.error] == ["a"]
        assert outputs.urgent
        assert [core.step().urgent for _ in range(5)] == [False] * 4 + [True]


def test_steps_of_the_only_request_run_on_the_caller_s_thread(folder: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    threads = []
    with make_llm(folder, True, logits_processors=[f"{__name__}:NotesThread"]) as llm:
        for prompts in ([[5, 6]], [[5, 6], [7, 8]], [[5, 6]]):
            NotesThread.seen.clear()
            llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
            threads.append(set(NotesThread.seen))
    alone, two, alone_again = threads
    assert alone == alone_again == {threading.get_ident()}
    assert len(two) == 1
    assert two != alone
