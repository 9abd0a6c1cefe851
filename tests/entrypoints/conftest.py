"""One small engine in this process for the tests that only look at what comes back, and how to make another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fathom import LLM, SamplingParams
from tests.entrypoints.processors import Explode, Fail, Force

MAX_MODEL_LEN = 128


def make_llm(folder: Path, **options: Any) -> LLM:
    defaults = {"multiprocess": False, "num_threads": 1, "max_model_len": MAX_MODEL_LEN, "show_progress": False}
    return LLM(str(folder), **(defaults | options))


@pytest.fixture(scope="session")
def llm(tiny: Callable[[str], Path]) -> Iterator[LLM]:
    """A Llama with a vocabulary of 512 tokens, <s> 0 and </s> 1, whose tokens a request can force."""
    with make_llm(tiny("llama-gqa"), logits_processors=[Force, Fail, Explode], max_logprobs=-1) as made:
        yield made


@pytest.fixture
def answer(llm: LLM) -> Callable[..., Any]:
    """answer(prompt, force=..., **params): the one answer to a prompt, greedy unless a temperature is given."""

    def one_answer(prompt: Any, *, force: list[int] | None = None, **params: Any) -> Any:
        given = {"temperature": 0.0, "extra_args": None if force is None else {"force": force}} | params
        (output,) = llm.generate(prompt, SamplingParams(**given), use_tqdm=False)
        return output.outputs[0]

    return one_answer
