"""Every architecture gives transformers' logits and greedy tokens, however the tokens are cut into steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from transformers.models.gemma3 import modeling_gemma3

from tests.models.loading import load
from tests.models.paged import PagedRun
from tests.models.tiny import TINY_NAMES, VOCAB_SIZE, load_oracle

TOLERANCE = 1e-4
PROMPT_LENGTHS = {"a": 40, "b": 1, "c": 17}
NEW_TOKENS = 24


class Case:
    """A model, its oracle, and what the oracle says about three prompts."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.model = load(folder)
        oracle = load_oracle(folder)
        generator = torch.Generator().manual_seed(1)
        self.sequences, self.logits = {}, {}
        for request, length in PROMPT_LENGTHS.items():
            prompt = torch.randint(2, VOCAB_SIZE, (1, length), generator=generator)
            self.sequences[request] = greedy(oracle, prompt)
            with torch.inference_mode():
                self.logits[request] = oracle(torch.tensor([self.sequences[request]])).logits[0]

    def prompt(self, request: str) -> list[int]:
        return self.sequences[request][: PROMPT_LENGTHS[request]]


@torch.inference_mode()
def greedy(oracle: transformers.PreTrainedModel, prompt: torch.Tensor) -> list[int]:
    tokens = prompt
    for _ in range(NEW_TOKENS):
        tokens = torch.cat((tokens, oracle(tokens).logits[:, -1:].argmax(-1)), dim=1)
    return tokens[0].tolist()


@pytest.fixture(scope="module", params=TINY_NAMES)
def case(request: pytest.FixtureRequest, tiny: Callable[[str], Path]) -> Iterator[Case]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "gemma3-softcaps":
            # transformers reads Gemma 3's soft-cap on scores but never hands it to its attention function.
            plain = modeling_gemma3.eager_attention_forward
            patch.setattr(modeling_gemma3, "eager_attention_forward", partial(plain, softcap=0.5))
        yield Case(tiny(request.param))


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=0)


def test_whole_sequence_at_once(case: Case) -> None:
    for request, tokens in case.sequences.items():
        assert_close(PagedRun(case.model).step({request: tokens})[request], case.logits[request])


@pytest.mark.parametrize(("chunk", "block_size"), [(1, 4), (5, 8), (16, 16), (33, 3)])
def test_chunked_prefill(case: Case, chunk: int, block_size: int) -> None:
    run = PagedRun(case.model, block_size)
    tokens = case.sequences["a"]
    parts = [run.step({"a": tokens[i : i + chunk]})["a"] for i in range(0, len(tokens), chunk)]
    assert_close(torch.cat(parts), case.logits["a"])


def test_greedy_decode_of_a_mixed_batch(case: Case) -> None:
    """Requests join one by one, the first in chunks, so that steps mix prefill and decode in every way."""
    run = PagedRun(case.model, seed=2)
    long = case.prompt("a")
    arrivals = [{"a": long[:11]}, {"a": long[11:30], "b": case.prompt("b")}, {"a": long[30:]}]
    arrivals.append({"c": case.prompt("c")})
    produced: dict[str, list[int]] = {request: [] for request in case.sequences}
    decoding: set[str] = set()
    while arrivals or any(len(tokens) < NEW_TOKENS for tokens in produced.values()):
        step = {r: produced[r][-1:] for r in sorted(decoding) if len(produced[r]) < NEW_TOKENS}
        step |= arrivals.pop(0) if arrivals else {}
        for request, logits in run.step(step).items():
            position = run.lengths[request]
            if position >= PROMPT_LENGTHS[request]:
                decoding.add(request)
                assert_close(logits[-1], case.logits[request][position - 1])
                produced[request].append(int(logits[-1].argmax()))
    for request, tokens in produced.items():
        assert case.prompt(request) + tokens == case.sequences[request]


def test_every_parameter_has_a_name_in_both_formats(case: Case) -> None:
    parameters = {name for name, _ in case.model.named_parameters()}
    for file_format in ("safetensors", "gguf"):
        named = {target.parameter for target in case.model.weight_map(file_format).values()}
        assert named == parameters
