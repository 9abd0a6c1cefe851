"""Packed weights cost next to no quality: perplexity on a fixed text is that of the decoded float32 model, within 1 %.
So do int8 and fp16 of an unquantised checkpoint, and int4 of one whose numbers 4 bits can hold.

The text, moby_dick.txt, is the opening of chapter 1 of Herman Melville's "Moby-Dick; or, The Whale" (1851), which is
in the public domain.
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

TEXT = Path(__file__).with_name("moby_dick.txt")
DEFAULT = "smollm2-135m"


def perplexity(model: str, **options: Any) -> float:
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    with LLM(model, max_model_len=1024, multiprocess=False, **options) as llm:
        (output,) = llm.generate([TEXT.read_text(encoding="utf-8")], params, use_tqdm=False)
    assert len(output.prompt_token_ids) > 500
    pairs = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    logprobs = [entries[token_id].logprob for token_id, entries in pairs]
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
