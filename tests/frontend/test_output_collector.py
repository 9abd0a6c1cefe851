"""OutputCollector: whatever the reader's pace, what it reads adds up to what was put in; one output waits at most."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from fathom.errors import EngineDeadError
from fathom.frontend.output_collector import OutputCollector
from fathom.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from fathom.sampling_params import RequestOutputKind
from fathom.step import LogprobsArrays


def output(index: int, token_id: int, *, last: bool = False, so_far: int = 0) -> RequestOutput:
    """A delta of one token; with so_far, a cumulative output of that many."""
    logprobs = PositionLogprobs(None)
    logprobs.append(LogprobsArrays.joined([(np.array([[token_id]]), np.array([[-1.0]]), np.array([1]))]), 0)
    ids = list(range(so_far)) or [token_id]
    answer = CompletionOutput(
        index, "".join(f"{i} " for i in ids), ids, -1.0, logprobs, finish_reason="stop" if last else None
    )
    return RequestOutput("r", None, [1], [answer], finished=last, num_cached_tokens=0)


@pytest.mark.parametrize("pace", [1, 3, 100])
def test_deltas_add_up_for_every_pace(pace: int) -> None:
    async def read() -> list[RequestOutput]:
        collector, got = OutputCollector(RequestOutputKind.DELTA), []
        for step in range(12):
            for index in (0, 1):
                collector.put(output(index, step, last=step == 11 and index == 1))
            if step % pace == 0:
                got.append(await collector.get())
        if not got[-1].finished:
            got.append(await collector.get())
        return got

    got = asyncio.run(read())
    for index in (0, 1):
        answers = [answer for item in got for answer in item.outputs if answer.index == index]
        assert [token_id for answer in answers for token_id in answer.token_ids] == list(range(12))
        assert "".join(answer.text for answer in answers) == "".join(f"{i} " for i in range(12))
        logprobs = [position for answer in answers for position in answer.logprobs or ()]
        assert [next(iter(position or {})) for position in logprobs] == list(range(12))
    assert [item.finished for item in got] == [False] * (len(got) - 1) + [True]


def test_cumulative_outputs_take_each_other_s_place() -> None:
    async def read() -> RequestOutput:
        collector = OutputCollector(RequestOutputKind.CUMULATIVE)
        for step in range(1, 1001):
            collector.put(output(0, 0, so_far=step))
        return await collector.get()

    assert len(asyncio.run(read()).outputs[0].token_ids) == 1000


@pytest.mark.parametrize("order", [(0, 32), (32, 0)])
def test_of_several_answers_the_one_that_found_the_least_says_what_was_cached(order: tuple[int, int]) -> None:
    async def read() -> RequestOutput:
        collector = OutputCollector(RequestOutputKind.DELTA)
        for index, num_cached in enumerate(order):
            found = output(index, 5)
            found.num_cached_tokens = num_cached
            collector.put(found)
        return await collector.get()

    assert asyncio.run(read()).num_cached_tokens == 0


def test_an_error_comes_after_what_waits_and_then_always() -> None:
    async def read() -> None:
        collector = OutputCollector(RequestOutputKind.DELTA)
        collector.put(output(0, 5))
        collector.put(EngineDeadError("gone"))
        assert (await collector.get()).outputs[0].token_ids == [5]
        for _ in range(2):
            with pytest.raises(EngineDeadError):
                await collector.get()

    asyncio.run(read())
