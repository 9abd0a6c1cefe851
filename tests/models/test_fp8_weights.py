"""quantization=fp8: matrices become 8-bit floats with a scale for each row while they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fathom import LLM, SamplingParams
from fathom.layers.embedding import VocabMatrix
from fathom.layers.fp8 import FP8
from fathom.layers.linear import Linear
from tests.models.loading import load


@pytest.mark.parametrize("name", ["llama-gqa", "gemma3"])
def test_rows_are_rounded_to_their_scales(tiny: Callable[[str], Path], name: str) -> None:
    exact, rounded = load(tiny(name)), load(tiny(name), quantization="fp8")
    num_rounded = 0
    for path, layer in rounded.named_modules():
        if not isinstance(layer, Linear):
            continue
        weight = exact.get_submodule(path).weight
        if isinstance(layer, VocabMatrix):
            assert torch.equal(layer.weight, weight)
            continue
        num_rounded += 1
        assert isinstance(layer.method, FP8)
        assert layer.weight.dtype is torch.float8_e4m3fn
        torch.testing.assert_close(layer.scales * 448, weight.abs().amax(1))
        # Half a step: a sixteenth of the number, or of the least normal one, 2^-6.
        allowed = (weight.abs() / 16).maximum(layer.scales[:, None] * 2.0**-10) * 1.001
        assert ((layer.weight.float() * layer.scales[:, None] - weight).abs() <= allowed).all()
    assert num_rounded >= 8
    assert rounded.weight_bytes() < exact.weight_bytes()


def test_dummy_weights(tiny: Callable[[str], Path]) -> None:
    model = load(tiny("llama-gqa"), load_format="dummy", quantization="fp8")
    weights = [layer.weight for layer in model.modules() if isinstance(layer, Linear) and isinstance(layer.method, FP8)]
    assert all(0.015 < float(weight.float().std()) < 0.025 for weight in weights)


def test_the_engine_runs_on_them(tiny: Callable[[str], Path]) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=0, ignore_eos=True)
    first = []
    for quantization, weights in ((None, "packed"), ("fp8", "dense")):
        with LLM(
            str(tiny("llama-gqa")),
            quantization=quantization,
            dtype="bfloat16",
            max_model_len=64,
            multiprocess=False,
            num_threads=1,
        ) as llm:
            assert llm.llm_engine.config.model.weights == weights
            (output,) = llm.generate([[5, 6, 7, 8]], params, use_tqdm=False)
            (entry,) = output.outputs[0].logprobs[0].values()
            first.append(entry.logprob)
    assert first[0] != first[1]
    assert first[0] == pytest.approx(first[1], abs=0.3)
