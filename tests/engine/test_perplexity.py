"""Packed weights cost next to no quality: perplexity on a fixed text is that of the decoded float32 model, within 1 %.
So do int8 and fp16 of an unquantised checkpoint, and int4 of one whose numbers 4 bits can hold.

Keys and values are int8 by default, except where keys have a bias; asked for there, int8 costs up to 2 %.

The texts are in the public domain: the opening of chapter 1 of Herman Melville's "Moby-Dick; or, The Whale" (1851), and
chapter I of Lewis Carroll's "Alice's Adventures in Wonderland" (1865). On fewer tokens than these, 3,600, the rounding
of activations alone moves a perplexity by a percent from one instruction set level to another.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from fathom import LLM, SamplingParams
from fathom.weights.catalogue import CATALOGUE
from fathom.weights.download import is_cached, pull
from tests.weights.unquantised import write_unquantised

TEXTS = [Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("moby_dick.txt", "alice.txt")]
DEFAULT = "smollm2-135m"


def perplexity(model: str, **options: Any) -> float:
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    with LLM(model, max_model_len=4096, multiprocess=False, **options) as llm:
        outputs = llm.generate(TEXTS, params, use_tqdm=False)
    logprobs = [
        entries[token_id].logprob
        for output in outputs
        for token_id, entries in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    ]
    assert len(logprobs) > 3000
    return math.exp(-sum(logprobs) / len(logprobs))


@pytest.mark.parametrize("name", CATALOGUE)
def test_packed_perplexity_is_within_one_percent(name: str) -> None:
    if name == DEFAULT:
        pull(CATALOGUE[name], show_progress=False)
    elif not is_cached(CATALOGUE[name]):
        pytest.skip(f"{name} is not here; `fathom pull {name}` fetches it")
    dense = perplexity(name, weights="dense")
    assert 10 < dense < 150  # these models do read English
    assert perplexity(name, weights="packed") == pytest.approx(dense, rel=0.01)
    if name.startswith("qwen2"):
        assert perplexity(name, weights="packed", kv_cache_dtype="int8") == pytest.approx(dense, rel=0.02)


@pytest.fixture(scope="module")
def unquantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model in 16 bits."""
    source = pull(CATALOGUE[DEFAULT], show_progress=False)
    return write_unquantised(source, tmp_path_factory.mktemp("unquantised") / "model.gguf")


def test_quantised_perplexity_is_within_one_percent(unquantised: Path) -> None:
    exact = perplexity(str(unquantised))
    for quantization in ("int8", "int4"):
        assert perplexity(str(unquantised), quantization=quantization) == pytest.approx(exact, rel=0.01)
    assert perplexity(str(unquantised), quantization="fp16") == exact
