"""RecordedSteps: replayed decode steps give the bits of steps that run call by call, and only where that is safe."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fathom import LLM, SamplingParams
from fathom.kernels import native
from fathom.outputs import RequestOutput
from fathom.worker.arena import Arena
from tests.models.tiny_gguf import write_gguf

pytestmark = pytest.mark.skipif(native.cpu is None, reason="there is nothing to replay without the native kernels")

PROMPTS = [{"prompt_token_ids": [(7 * index * n + 3) % 512 for n in range(1, 4 + 9 * index)]} for index in range(5)]
# They end one after another, so that steps of five rows are followed by steps of four, three, two and one.
PARAMS = [SamplingParams(temperature=0.0, max_tokens=12 - 2 * index, logprobs=3, ignore_eos=True) for index in range(5)]


def answers(path: Path, **options: object) -> list[tuple[tuple[int, ...], list[float]]]:
    """Each prompt's tokens and their log-probabilities, twice: the second time every step size has been met."""
    with LLM(path, multiprocess=False, num_threads=2, max_model_len=128, show_progress=False, **options) as llm:
        outputs = [output for _ in range(2) for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]
    return [(tuple(output.outputs[0].token_ids), scores(output)) for output in outputs]


def scores(output: RequestOutput) -> list[float]:
    completion = output.outputs[0]
    assert completion.logprobs is not None
    return [position[token].logprob for position, token in zip(completion.logprobs, completion.token_ids, strict=True)]


@pytest.mark.parametrize("name", ["llama-gqa", "qwen2", "qwen3-tied", "gemma3"])
def test_replayed_steps_give_the_same_bits(
    tiny: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    path = write_gguf(tiny(name), tmp_path / "model.gguf", "Q4_1")
    eager = answers(path, enforce_eager=True)
    with caplog.at_level(logging.DEBUG, logger="fathom.worker.recorded_steps"):
        assert answers(path) == eager
    recorded = {record.args[0] for record in caplog.records if record.args}
    assert recorded == {1, 2, 3, 4, 5}


def test_a_model_that_computes_with_torch_is_not_replayed(
    tiny: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    path = tiny("llama-gqa")
    eager = answers(path, enforce_eager=True, dtype="float32")
    with caplog.at_level(logging.DEBUG, logger="fathom.worker.recorded_steps"):
        assert answers(path, dtype="float32") == eager
    assert [record.getMessage() for record in caplog.records] == [
        "decode steps are not replayed: the model runs aten.linear.default"
    ]


def test_a_buffer_is_taken_again_only_when_no_view_of_it_lives() -> None:
    arena = Arena(max_rows=4)
    first = arena.empty_like(torch.empty(4, 6))
    second = arena.empty_like(torch.empty(2, 6))
    assert first.data_ptr() != second.data_ptr()
    address, view = first.data_ptr(), first[1:, :3]
    del first
    third = arena.empty_like(torch.empty(4, 6))
    assert third.data_ptr() not in (address, second.data_ptr())
    del view
    fewer_rows = arena.empty_like(torch.empty(1, 6))
    assert fewer_rows.data_ptr() == address
    assert fewer_rows.shape == (1, 6)
    assert address % 64 == 0


def test_a_place_keeps_no_buffer_from_being_taken_again() -> None:
    arena = Arena(max_rows=4)
    logits = arena.empty_like(torch.empty(3, 6))
    logits.copy_(torch.arange(18.0).view(3, 6))
    place, address = arena.place_of(logits), logits.data_ptr()
    del logits
    assert torch.equal(arena.tensor_at(place), torch.arange(18.0).view(3, 6))
    assert arena.empty_like(torch.empty(2, 6)).data_ptr() == address
