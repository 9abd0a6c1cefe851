"""Tokens a second of the whole engine: decode at several numbers of sequences, and prefill of long prompts.

The shape is that of llama-batched-bench: prompts of 128 made-up tokens, then greedy answers; prompts are cached
before the clock starts. Prefill is measured with an empty cache. In this process, so that the instruction set level
of the native kernels can be chosen.

    python benchmarks/engine.py --model smollm2-135m --weights packed dense --level avx512vnni avx2 portable
"""

from __future__ import annotations

import argparse
import time

from table import print_header, print_row

from fathom import LLM, SamplingParams
from fathom.kernels.native import cpu

PROMPT_TOKENS = 128
DECODE_SHAPES = ((1, 128), (8, 64), (32, 64), (64, 64))  # sequences, tokens of each answer
PREFILL_LENGTHS = (512, 1024)


def prompts(count: int, length: int) -> list[list[int]]:
    return [[(7 * i + 13 * j) % 40_000 + 100 for j in range(length)] for i in range(count)]


def seconds(llm: LLM, batch: list[list[int]], max_tokens: int) -> float:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    start = time.perf_counter()
    llm.generate(batch, params, use_tqdm=False)
    return time.perf_counter() - start


def measure_decode(llm: LLM, count: int, max_tokens: int) -> float:
    batch = prompts(count, PROMPT_TOKENS)
    seconds(llm, batch, 1)
    return count * max_tokens / seconds(llm, batch, max_tokens)


def measure_prefill(llm: LLM, length: int) -> float:
    llm.reset_prefix_cache()
    return length / seconds(llm, prompts(1, length), 1)


def report(llm: LLM, runs: int) -> None:
    for count, max_tokens in DECODE_SHAPES:
        print_row(f"decode, {count} sequences", [measure_decode(llm, count, max_tokens) for _ in range(runs)])
    for length in PREFILL_LENGTHS:
        print_row(f"prefill, {length} tokens", [measure_prefill(llm, length) for _ in range(runs)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--weights", nargs="+", choices=("packed", "dense"), default=["packed"])
    parser.add_argument("--level", nargs="+", default=cpu.levels()[:1] if cpu is not None else ["none"])
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    print_header("tokens/s")
    for weights in options.weights:
        with LLM(options.model, weights=weights, max_model_len=2048, multiprocess=False, show_progress=False) as llm:
            for level in options.level:
                if cpu is not None:
                    cpu.use_level(level)
                print(f"{options.model}, {weights}, {level}")
                report(llm, options.runs)


if __name__ == "__main__":
    main()
