"""Greedy tokens and logprobs equal transformers' in float32: every architecture, through the whole engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import transformers
from transformers.models.gemma3 import modeling_gemma3

from fathom import LLM, SamplingParams
from tests.engine.oracle import check_greedy, reference_logprobs
from tests.models.tiny import TINY_NAMES, load_oracle

PROMPTS = [[5 + (7 * i * (k + 1)) % 480 for i in range(length)] for k, length in enumerate((1, 7, 16, 33, 60))]


@pytest.mark.parametrize("name", TINY_NAMES)
def test_tiny_models_of_every_architecture(name: str, tiny: Callable[[str], Path], monkeypatch) -> None:
    if name == "gemma3-softcaps":
        # transformers reads Gemma 3's soft-cap on scores but never hands it to its attention function.
        plain = modeling_gemma3.eager_attention_forward
        monkeypatch.setattr(modeling_gemma3, "eager_attention_forward", partial(plain, softcap=0.5))
    oracle = load_oracle(tiny(name))
    params = SamplingParams(temperature=0.0, max_tokens=40, logprobs=3, ignore_eos=True)
    with LLM(str(tiny(name)), multiprocess=False, max_num_batched_tokens=48, num_threads=1) as llm:
        for prompt, output in zip(PROMPTS, llm.generate(PROMPTS, params, use_tqdm=False), strict=True):
            answer = output.outputs[0]
            assert len(answer.token_ids) == 40
            check_greedy(oracle, prompt, answer.token_ids, answer.logprobs)


QUESTIONS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at",
    "The three laws of thermodynamics are",
    "Dear Sir or Madam,",
    "To be, or not to be,",
    "1, 1, 2, 3, 5, 8, 13,",
    "A fathom is a unit of",
    "In 1969, the first",
    "Zürich, São Paulo and 東京 are",
    "Q: What is the boiling point of nitrogen?\nA:",
    "SELECT name FROM users WHERE",
    "The quick brown fox",
    "🙂 means",
    "My grandmother's recipe for bread begins with",
    "E = mc²; here E is",
    "<html>\n<head>\n",
    "Once the engine has",
    "She opened the letter and",
]


@pytest.fixture(scope="module")
def smollm2_oracle(smollm2_path: Path) -> transformers.PreTrainedModel:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2_path.parent,
        gguf_file=smollm2_path.name,
        quantization_config=transformers.GgufConfig(dequantize=True),
        dtype="float32",
    )
    return model.eval()


def test_the_default_model_on_twenty_prompts(smollm2_path: Path, smollm2_oracle) -> None:
    assert len(QUESTIONS) == 20
    params = SamplingParams(temperature=0.0, max_tokens=64, logprobs=2, ignore_eos=True)
    with LLM(str(smollm2_path), dtype="float32", max_model_len=512) as llm:
        for output in llm.generate(QUESTIONS, params, use_tqdm=False):
            answer = output.outputs[0]
            assert len(answer.token_ids) == 64
            check_greedy(smollm2_oracle, output.prompt_token_ids, answer.token_ids, answer.logprobs)


@pytest.mark.parametrize("budget", [16, 140, 2048])
def test_prompt_logprobs_of_a_chunked_prompt(tiny: Callable[[str], Path], budget: int) -> None:
    """Chunks of fewer positions than are scored at once, of a few more, and the whole prompt."""
    oracle = load_oracle(tiny("llama-gqa"))
    prompt = [5 + 7 * i * i % 480 for i in range(200)]
    params = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=3, ignore_eos=True)
    with LLM(str(tiny("llama-gqa")), multiprocess=False, max_num_batched_tokens=budget, num_threads=1) as llm:
        for _ in range(2):  # the second time nothing may come from the prefix cache
            (output,) = llm.generate([prompt], params, use_tqdm=False)
            assert output.num_cached_tokens == 0
            assert len(output.prompt_logprobs) == len(prompt)
            assert output.prompt_logprobs[0] is None
            reference = reference_logprobs(oracle, prompt[:1], prompt[1:])
            for position, entries in enumerate(output.prompt_logprobs[1:]):
                assert next(iter(entries)) == prompt[position + 1]
                assert len(entries) in (3, 4)
                for token_id, entry in entries.items():
                    assert abs(entry.logprob - reference[position, token_id].item()) < 1e-4
