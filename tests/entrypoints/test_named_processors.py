"""SamplingParams(logits_processors=[...]): which of an engine's processors a request gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fathom import LLM, SamplingParams
from fathom.errors import ValidationError
from tests.entrypoints.conftest import make_llm
from tests.entrypoints.processors import Force, OnlyEven

PROMPTS = [[5, 6, 7], [9], [20, 21], [5, 6]]


@pytest.fixture(scope="module")
def two(tiny: Callable[[str], Path]) -> Iterator[LLM]:
    with make_llm(tiny("llama-gqa"), logits_processors=[Force, OnlyEven]) as made:
        yield made


def naming(*names: str) -> SamplingParams:
    return unnamed(list(names))


def unnamed(names: list[str] | None = None) -> SamplingParams:
    extra = {"force": [9, 8, 7]}
    return SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, extra_args=extra, logits_processors=names)


def tokens(llm: LLM, prompts: list[list[int]], params: list[SamplingParams] | SamplingParams) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]


def test_each_request_of_a_batch_gets_its_own(two: LLM, llm: LLM) -> None:
    choices = [naming(), naming("Force"), naming("tests.entrypoints.processors:OnlyEven"), unnamed()]
    none, forced, even, both = tokens(two, PROMPTS, choices)
    plain = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    assert [none] == tokens(llm, PROMPTS[:1], plain)
    assert [forced] == tokens(llm, PROMPTS[1:2], unnamed())
    assert forced[:3] == [9, 8, 7]
    assert all(token % 2 == 0 for token in [*even, *both])
    assert both[1] == 8  # of what is forced, the one that is even
    for prompt, params, alone in zip(PROMPTS, choices, (none, forced, even, both), strict=True):
        assert tokens(two, [prompt], params) == [alone]


def test_a_name_that_is_not_loaded(two: LLM, tiny: Callable[[str], Path]) -> None:
    with pytest.raises(
        ValidationError, match=r"holds 'Froce', and no such processor is loaded\. There is Force, OnlyEven"
    ):
        tokens(two, PROMPTS, naming("OnlyEven", "Froce"))
    with make_llm(tiny("llama-gqa")) as bare:
        with pytest.raises(ValidationError, match="There is none; start the engine with logits_processors"):
            tokens(bare, PROMPTS, naming("Force"))
        assert tokens(bare, PROMPTS, naming()) == tokens(bare, PROMPTS, unnamed())
