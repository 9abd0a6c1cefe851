"""AsyncLLM: many requests at once on one loop, each a generator, and whatever can happen to one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from fathom import LLM, AsyncLLM, EngineConfig, RequestOutput, RequestOutputKind, SamplingParams
from fathom.errors import ConfigError, EngineDeadError, ValidationError
from tests.client.processes import PATIENCE_S

OPTIONS: dict[str, Any] = {"num_threads": 1, "show_progress": False, "seed": 0, "max_num_seqs": 32}
PROMPTS = ["The capital of France is", "Once upon a time", "def f(x):", "a", "The sea " * 20] * 3
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)  # of the endless model

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(scope="module")
def model(endless: Path) -> Path:
    return endless


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """run(coroutine) on the loop that the engine of this module lives on."""
    with asyncio.Runner() as runner:
        yield lambda coroutine: runner.run(asyncio.wait_for(coroutine, PATIENCE_S))


@pytest.fixture(scope="module")
def llm(model: Path, run: Run) -> Iterator[AsyncLLM]:
    engine = run(AsyncLLM.start(config_of(model)))
    yield engine
    engine.shutdown()


@pytest.fixture(autouse=True)
def nothing_is_left(llm: AsyncLLM, run: Run) -> Iterator[None]:
    yield
    run(until_idle(llm))
    assert llm.output_processor.num_unfinished == 0


def config_of(model: Path) -> EngineConfig:
    return EngineConfig.from_options(model=str(model), **OPTIONS)


async def until_idle(llm: AsyncLLM) -> None:
    """Wait until the engine holds no request and no block."""
    while True:
        stats = await llm.get_stats()
        if (stats["num_running"], stats["num_waiting"], stats["kv_cache_usage"]) == (0, 0, 0.0):
            return
        await asyncio.sleep(0.01)


async def collect(llm: AsyncLLM, prompt: Any, params: SamplingParams, request_id: str) -> list[RequestOutput]:
    return [output async for output in llm.generate(prompt, params, request_id)]


def of_kind(kind: RequestOutputKind, **changes: Any) -> SamplingParams:
    return SamplingParams(**({"temperature": 0, "max_tokens": 12, "ignore_eos": True, "output_kind": kind} | changes))


# ---------------------------------------------------------------- answers


def test_concurrent_requests_give_the_answers_of_llm(llm: AsyncLLM, run: Run, model: Path) -> None:
    sampled = [SamplingParams(temperature=1.0, seed=index, max_tokens=10 + index) for index in range(len(PROMPTS))]
    params = [GREEDY] * len(PROMPTS) + sampled

    async def answer() -> list[list[RequestOutput]]:
        jobs = [collect(llm, prompt, params[i], f"r{i}") for i, prompt in enumerate(PROMPTS * 2)]
        return await asyncio.gather(*jobs)

    with LLM(str(model), multiprocess=False, **OPTIONS) as offline:
        expected = offline.generate(PROMPTS * 2, params, use_tqdm=False)
    for index, (outputs, wanted) in enumerate(zip(run(answer()), expected, strict=True)):
        assert [output.request_id for output in outputs] == [f"r{index}"] * len(outputs)
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        last = outputs[-1]
        assert (last.prompt, last.prompt_token_ids) == (wanted.prompt, wanted.prompt_token_ids)
        assert last.outputs[0].text == wanted.outputs[0].text
        assert last.outputs[0].token_ids == wanted.outputs[0].token_ids
        assert last.outputs[0].finish_reason == wanted.outputs[0].finish_reason


def test_cumulative_outputs_grow_deltas_add_up_and_final_only_comes_once(llm: AsyncLLM, run: Run) -> None:
    async def answer() -> list[list[RequestOutput]]:
        return await asyncio.gather(*[collect(llm, PROMPTS[0], of_kind(kind), kind.name) for kind in RequestOutputKind])

    cumulative, deltas, final = run(answer())
    whole = final[0].outputs[0]
    assert (len(final), len(whole.token_ids)) == (1, 12)
    lengths = [len(output.outputs[0].token_ids) for output in cumulative]
    assert lengths == sorted(set(lengths))
    for length, output in zip(lengths, cumulative, strict=True):
        assert output.outputs[0].token_ids == whole.token_ids[:length]
        assert whole.text.startswith(output.outputs[0].text)
    assert cumulative[-1].outputs[0].text == whole.text
    assert [token_id for output in deltas for token_id in output.outputs[0].token_ids] == whole.token_ids
    assert "".join(output.outputs[0].text for output in deltas) == whole.text
    assert all(output.outputs[0].token_ids for output in deltas)


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_three_answers_stream_side_by_side(llm: AsyncLLM, run: Run, kind: RequestOutputKind) -> None:
    params = of_kind(kind, n=3, temperature=1.0, seed=5, max_tokens=9)
    outputs = run(collect(llm, PROMPTS[0], params, "three"))
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    tokens: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for output in outputs:
        for answer in output.outputs:
            if kind is RequestOutputKind.DELTA:
                tokens[answer.index] += answer.token_ids
            else:
                tokens[answer.index] = answer.token_ids
    assert [len(ids) for ids in tokens.values()] == [9, 9, 9]
    assert len({tuple(ids) for ids in tokens.values()}) == 3
    alone = of_kind(RequestOutputKind.FINAL_ONLY, temperature=1.0, seed=5, max_tokens=9)
    assert run(collect(llm, PROMPTS[0], alone, "one"))[0].outputs[0].token_ids == tokens[0]
    if kind is RequestOutputKind.FINAL_ONLY:
        assert [answer.index for answer in outputs[0].outputs] == [0, 1, 2]


def test_a_stop_string_ends_the_request_in_the_engine_too(llm: AsyncLLM, run: Run) -> None:
    final = of_kind(RequestOutputKind.FINAL_ONLY, max_tokens=100)
    whole = run(collect(llm, PROMPTS[0], final, "whole"))[-1].outputs[0].text
    stop = whole[10:13]

    async def answer() -> RequestOutput:
        (output,) = await collect(llm, PROMPTS[0], params, "stopped")
        await until_idle(llm)
        return output

    params = of_kind(RequestOutputKind.FINAL_ONLY, max_tokens=None, stop=stop)
    (stopped,) = run(answer()).outputs
    assert (stopped.text, stopped.finish_reason) == (whole[: whole.index(stop)], "stop")
    assert stopped.stop_reason == stop


# ---------------------------------------------------------------- ends before the end


@pytest.mark.parametrize("n", [1, 3])
def test_closing_the_generator_aborts_the_request(llm: AsyncLLM, run: Run, n: int) -> None:
    async def read_a_little() -> None:
        params = of_kind(RequestOutputKind.DELTA, n=n, temperature=1.0, max_tokens=None)
        generator = llm.generate(PROMPTS[0], params, "closed")
        await anext(generator)
        await generator.aclose()
        await until_idle(llm)

    run(read_a_little())


def test_leaving_the_loop_early_aborts_the_request(llm: AsyncLLM, run: Run) -> None:
    async def read_a_little() -> None:
        async for _ in llm.generate(PROMPTS[0], ENDLESS, "left"):
            break
        await asyncio.sleep(0)  # the loop closes the forgotten generator
        await asyncio.sleep(0)
        await until_idle(llm)

    run(read_a_little())


def test_cancelling_the_reader_aborts_the_request(llm: AsyncLLM, run: Run) -> None:
    async def cancel() -> None:
        readers = [asyncio.create_task(collect(llm, [5, 6, index], ENDLESS, str(index))) for index in range(20)]
        other = asyncio.create_task(collect(llm, PROMPTS[0], GREEDY, "other"))
        while not all(str(index) in llm.output_processor for index in range(20)):
            await asyncio.sleep(0)
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)
        assert all(reader.cancelled() for reader in readers)
        assert (await other)[-1].outputs[0].finish_reason == "length"
        await until_idle(llm)

    run(cancel())


def test_cancelling_before_the_first_await_leaves_nothing(llm: AsyncLLM, run: Run) -> None:
    async def cancel() -> None:
        reader = asyncio.create_task(collect(llm, PROMPTS[0], ENDLESS, "early"))
        await asyncio.sleep(0)
        reader.cancel()
        await asyncio.wait([reader])
        generator = llm.generate(PROMPTS[0], ENDLESS, "early")
        await generator.aclose()
        await until_idle(llm)

    run(cancel())


@pytest.mark.parametrize("kind", RequestOutputKind)
@pytest.mark.parametrize("n", [1, 3])
def test_abort_gives_a_last_output(llm: AsyncLLM, run: Run, kind: RequestOutputKind, n: int) -> None:
    async def abort() -> list[RequestOutput]:
        params = of_kind(kind, n=n, temperature=1.0, max_tokens=None)
        reader = asyncio.create_task(collect(llm, PROMPTS[0], params, "x"))
        while "x" not in llm.output_processor:
            await asyncio.sleep(0)
        await llm.abort("unknown")
        await llm.abort("x")
        await llm.abort("x")
        await until_idle(llm)
        return await reader

    outputs = run(abort())
    assert outputs[-1].finished
    last = {answer.index: answer.finish_reason for output in outputs for answer in output.outputs}
    assert last == dict.fromkeys(range(n), "abort")


# ---------------------------------------------------------------- errors


def test_a_wrong_request_is_refused_and_the_others_go_on(llm: AsyncLLM, run: Run) -> None:
    wrong = [
        ([], GREEDY),
        ([10_000], GREEDY),
        ([5] * 200_000, GREEDY),
        (7, GREEDY),
        ("x", SamplingParams(logprobs=1000)),
        ("x", SamplingParams(extra_args={"f": print})),
        ("x", "greedy"),
    ]

    async def answer() -> tuple[list[Any], list[RequestOutput]]:
        good = asyncio.create_task(collect(llm, PROMPTS[0], GREEDY, "good"))
        jobs = [collect(llm, prompt, params, f"bad{i}") for i, (prompt, params) in enumerate(wrong)]
        return await asyncio.gather(*jobs, return_exceptions=True), await good

    errors, good = run(answer())
    assert all(isinstance(error, ValidationError) for error in errors), errors
    assert len(good[-1].outputs[0].token_ids) == 12


@pytest.mark.parametrize(("request_id", "priority"), [(5, 0), ("x", 0.5), ("x", None), ("x", 2**70), ("\ud800", 0)])
def test_what_the_engine_could_not_read_is_refused_here(
    llm: AsyncLLM, run: Run, request_id: Any, priority: Any
) -> None:
    """Else the engine would drop the message, and the caller wait for ever."""

    async def answer() -> None:
        async for _ in llm.generate("x", GREEDY, request_id, priority=priority):
            pass

    with pytest.raises(ValidationError) as caught:
        run(answer())
    assert caught.value.parameter in ("request_id", "priority")


def test_an_id_in_use_is_refused_and_its_owner_goes_on(llm: AsyncLLM, run: Run) -> None:
    async def answer() -> list[RequestOutput]:
        first = asyncio.create_task(collect(llm, PROMPTS[0], GREEDY, "same"))
        await asyncio.sleep(0)
        with pytest.raises(ValidationError, match="'same' is in use"):
            await collect(llm, PROMPTS[1], GREEDY, "same")
        outputs = await first
        return outputs + await collect(llm, PROMPTS[0], GREEDY, "same")

    outputs = run(answer())
    finals = [output.outputs[0].token_ids for output in outputs if output.finished]
    assert len(finals) == 2
    assert finals[0] == finals[1]
    assert len(finals[0]) == 12


def test_control_calls_run_beside_requests_and_each_other(llm: AsyncLLM, run: Run) -> None:
    async def call() -> None:
        long = of_kind(RequestOutputKind.CUMULATIVE, max_tokens=200)
        readers = [asyncio.create_task(collect(llm, [5, 6, index], long, str(index))) for index in range(8)]
        calls = [llm.get_stats() if index % 2 else llm.reset_prefix_cache() for index in range(40)]
        wrong = llm.engine_core.call("no such operation")
        results = await asyncio.gather(*calls, wrong, return_exceptions=True)
        assert isinstance(results.pop(), ValidationError)
        assert results[::2] == [True] * 20
        assert all(0 <= stats["num_running"] <= 8 for stats in results[1::2])
        for outputs in await asyncio.gather(*readers):
            assert len(outputs[-1].outputs[0].token_ids) == 200

    run(call())


def test_shutdown_ends_open_generators_and_calls(model: Path) -> None:
    async def shut_down() -> None:
        tasks = asyncio.all_tasks()
        llm = await AsyncLLM.start(config_of(model))
        readers = [asyncio.create_task(collect(llm, [5, index], ENDLESS, str(index))) for index in range(5)]
        await llm.get_stats()
        call = asyncio.create_task(llm.get_stats())
        await asyncio.sleep(0)
        llm.shutdown()
        llm.shutdown()
        results = await asyncio.gather(*readers, call, return_exceptions=True)
        assert [str(result) for result in results] == ["the engine was shut down"] * 6
        assert {type(result) for result in results} == {EngineDeadError}
        for late in (collect(llm, "x", GREEDY, "late"), llm.get_stats(), llm.check_health()):
            with pytest.raises(EngineDeadError, match="the engine was shut down"):
                await late
        assert llm.errored
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == tasks

    asyncio.run(asyncio.wait_for(shut_down(), PATIENCE_S))


def test_in_process_is_refused_by_name(model: Path) -> None:
    config = EngineConfig.from_options(model=str(model), multiprocess=False)
    with pytest.raises(ConfigError, match="AsyncLLM needs an engine process of its own") as caught:
        asyncio.run(AsyncLLM.start(config))
    assert caught.value.parameter == "multiprocess"
