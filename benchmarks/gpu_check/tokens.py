"""Greedy tokens of a small float32 model on the device and on the CPU, where they equal transformers' in the tests."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.models import SHAPES, make_model
from benchmarks.gpu_check.rows import Report, attempt
from benchmarks.gpu_check.weights import add_weights
from fathom import LLM, SamplingParams


def run(
    report: Report, *, model: str, folder: str, device: str, lengths: list[int], num_tokens: int, seed: int
) -> None:
    add_weights(model, make_model(model, Path(folder)), seed)
    chance = random.Random(seed)
    prompts = [[chance.randrange(1, SHAPES[model]["vocab_size"]) for _ in range(length)] for length in lengths]
    expected = greedy(folder, "cpu", prompts, num_tokens, enforce_eager=True)
    for name, options in (("", {}), (", in chunks of 48", {"max_num_batched_tokens": 48, "max_num_seqs": 8})):
        with attempt(report, f"answers equal to the CPU's{name}"):
            found = greedy(folder, device, prompts, num_tokens, **options)
            equal = [common_length(*pair) for pair in zip(found, expected, strict=True)]
            note = f"of {len(prompts)}; equal tokens of {num_tokens}: {', '.join(map(str, equal))}"
            same = equal.count(num_tokens)
            report(f"answers equal to the CPU's{name}", same, "answers", least=len(prompts), must=True, note=note)


def common_length(ours: list[int], theirs: list[int]) -> int:
    """Tokens up to the first that differs."""
    pairs = zip(ours, theirs, strict=True)
    return next((place for place, (own, other) in enumerate(pairs) if own != other), len(theirs))


def greedy(folder: str, device: str, prompts: list[list[int]], num_tokens: int, **options: Any) -> list[list[int]]:
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
    with LLM(
        folder,
        device=device,
        dtype="float32",
        multiprocess=False,
        max_model_len=1024,
        kv_cache_memory_bytes=1 << 28,
        show_progress=False,
        **options,
    ) as llm:
        return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]
