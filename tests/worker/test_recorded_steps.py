"""RecordedSteps: replayed steps give the bits of steps that run call by call, and only where that is safe."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fathom import LLM, SamplingParams
from fathom.kernels import native
from fathom.kernels.norm import rms_norm
from fathom.outputs import RequestOutput
from fathom.worker import recorded_steps
from fathom.worker.arena import Arena
from fathom.worker.forward_batch import ForwardBatch, StepInputs
from tests.models.tiny_gguf import write_gguf

pytestmark = pytest.mark.skipif(native.cpu is None, reason="there is nothing to replay without the native kernels")

Graph = Any
WEIGHT = torch.arange(32.0)
PROMPTS = [{"prompt_token_ids": [(7 * index * n + 3) % 512 for n in range(1, 4 + 9 * index)]} for index in range(5)]
# They end one after another, so that steps of five rows are followed by steps of four, three, two and one.
PARAMS = [SamplingParams(temperature=0.0, max_tokens=12 - 2 * index, logprobs=3, ignore_eos=True) for index in range(5)]


def answers(path: Path, **options: object) -> list[tuple[tuple[int, ...], list[float]]]:
    """Each prompt's tokens and their log-probabilities, twice: the second time prompts are found in the cache."""
    with LLM(path, multiprocess=False, num_threads=2, max_model_len=128, show_progress=False, **options) as llm:
        outputs = [output for _ in range(2) for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]
    return [(tuple(output.outputs[0].token_ids), scores(output)) for output in outputs]


def scores(output: RequestOutput) -> list[float]:
    completion = output.outputs[0]
    assert completion.logprobs is not None
    return [position[token].logprob for position, token in zip(completion.logprobs, completion.token_ids, strict=True)]


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """What RecordedSteps has said so far."""
    with caplog.at_level(logging.DEBUG, logger="fathom.worker.recorded_steps"):
        yield lambda: [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("name", ["llama-gqa", "qwen2", "qwen3-tied", "gemma3"])
def test_replayed_steps_give_the_same_bits(
    tiny: Callable[[str], Path], tmp_path: Path, messages: Callable[[], list[str]], name: str
) -> None:
    path = write_gguf(tiny(name), tmp_path / "model.gguf", "Q4_1")
    eager = answers(path, enforce_eager=True)
    assert not messages()
    assert answers(path) == eager
    assert messages()[0].startswith("recorded")


@pytest.mark.parametrize("options", [{"max_num_seqs": 1}, {"max_num_seqs": 2, "max_num_batched_tokens": 4}])
def test_the_smallest_steps_are_replayed(
    tiny: Callable[[str], Path], tmp_path: Path, messages: Callable[[], list[str]], options: dict[str, int]
) -> None:
    path = write_gguf(tiny("llama-gqa"), tmp_path / "model.gguf", "Q4_1")
    eager = answers(path, enforce_eager=True)
    assert answers(path, **options) == eager
    assert messages()[0].startswith("recorded")


def test_steps_that_cannot_be_as_large_as_those_recorded_run_call_by_call(
    tiny: Callable[[str], Path], tmp_path: Path, messages: Callable[[], list[str]]
) -> None:
    path = write_gguf(tiny("llama-gqa"), tmp_path / "model.gguf", "Q4_1")
    eager = answers(path, enforce_eager=True)
    assert answers(path, max_num_seqs=2, max_num_batched_tokens=3) == eager
    assert not messages()


def test_steps_that_are_too_large_run_between_others(
    tiny: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tiny("llama-gqa"), tmp_path / "model.gguf", "Q4_1")
    eager = answers(path, enforce_eager=True)
    monkeypatch.setattr(recorded_steps, "MAX_TOKENS", 4)
    assert answers(path) == eager


def test_a_model_that_computes_with_torch_is_not_replayed(
    tiny: Callable[[str], Path], messages: Callable[[], list[str]]
) -> None:
    path = tiny("llama-gqa")
    eager = answers(path, enforce_eager=True, dtype="float32")
    assert answers(path, dtype="float32") == eager
    assert messages() == [NOT + "the model runs aten.linear.default"]


class Norms(torch.nn.Module):
    """Its hidden states are normalised rows of X, its logits those again.

    Args:
        epsilon_of: number of tokens -> that of the norm.
        finish: what is done to the hidden states in the end.
    """

    def __init__(self, epsilon_of: Callable[[int], float], finish: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self._epsilon_of, self._finish = epsilon_of, finish

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, batch: object) -> torch.Tensor:
        hidden = rms_norm(X[: len(input_ids)], WEIGHT, self._epsilon_of(len(input_ids)))
        self._finish(hidden)
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden, WEIGHT, 1e-5)


class Padding:
    """A step without requests."""

    def padded_inputs(self, rows: int, tokens: int) -> StepInputs:
        batch = ForwardBatch(query_start_loc=IDS[: rows + 1], seq_lens=IDS[:rows], kv_caches=[], tables=[])
        return StepInputs(IDS[:tokens], IDS[:tokens], batch)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the head is recorded, too")


X = torch.linspace(-1.0, 3.0, 9 * 32).view(9, 32)
IDS = torch.zeros(9, dtype=torch.int64)
NOT = "steps are not replayed: "
RECORDED = ["recorded 1 kernel calls"] * 2  # the body's, and the head's


@pytest.mark.parametrize(
    ("epsilon_of", "finish", "said"),
    [
        (lambda count: 1e-5, lambda hidden: None, RECORDED),
        (lambda count: 1e-5, lambda hidden: hidden[1:].view(-1, 16), RECORDED),  # views compute nothing
        (lambda count: 1e-5, lambda hidden: hidden * 2, [NOT + "the model runs aten.mul.Tensor"]),
        (lambda count: 1e-5, lambda hidden: hidden.mul_(2), [NOT + "the model runs aten.mul_.Tensor"]),
        (
            lambda count: count * 1e-5,
            lambda hidden: None,
            [NOT + "their calls differ in more than numbers of tokens and requests"],
        ),
    ],
    ids=["kernels alone", "a view", "an operation", "one in place", "a number that follows the size"],
)
def test_only_what_kernels_do_for_any_size_is_replayed(
    messages: Callable[[], list[str]],
    epsilon_of: Callable[[int], float],
    finish: Callable[[torch.Tensor], object],
    said: list[str],
) -> None:
    model = Norms(epsilon_of, finish)
    steps = recorded_steps.RecordedSteps(model, 8, 8)  # type: ignore[arg-type]
    steps.record(Padding())
    assert messages() == said
    assert steps.cover(7, 7, 7) == (said == RECORDED)
    assert not steps.cover(1, 9, 1)
    if said == RECORDED:
        for count in (7, 1, 3, 7):
            logits = steps.run(count, count, count, Padding())
            assert torch.equal(logits, rms_norm(rms_norm(X[:count], WEIGHT, 1e-5), WEIGHT, 1e-5))


def recorded_norm(x: torch.Tensor, output: torch.Tensor, rows: int, requests: int, epsilon: float = 1e-5) -> Graph:
    """The graph of a step of `rows` tokens that normalises the first rows of x, 32 columns wide."""
    native.cpu.start_recording(rows, requests)
    weight = WEIGHT.data_ptr()
    native.cpu.rms_norm(output.data_ptr(), x.data_ptr(), weight, rows, 32, epsilon)
    return native.cpu.stop_recording()


def test_a_graph_of_two_sizes_is_one_of_all() -> None:
    x, output = torch.randn(9, 32), torch.zeros(9, 32)
    graph = recorded_norm(x, output, 2, 1)
    assert graph.generalise(recorded_norm(x, output, 3, 2))
    output.zero_()
    graph.replay(7, 32)
    assert torch.equal(output[:7], rms_norm(x, WEIGHT, 1e-5)[:7])
    assert not output[7:].any()


def test_a_number_that_is_no_size_of_the_step_makes_a_graph_useless() -> None:
    x, output = torch.randn(9, 32), torch.zeros(9, 32)
    graph = recorded_norm(x, output, 2, 1)
    assert not graph.generalise(recorded_norm(x, output, 3, 2, epsilon=1e-6))
    assert not graph.generalise(recorded_norm(x[1:], output, 3, 2))
    native.cpu.start_recording(4, 2)
    native.cpu.rms_norm(output.data_ptr(), x.data_ptr(), WEIGHT.data_ptr(), 8, 32, 1e-5)
    assert not graph.generalise(native.cpu.stop_recording())
    native.cpu.start_recording(4, 2)
    assert not graph.generalise(native.cpu.stop_recording())


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
