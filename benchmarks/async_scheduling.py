"""Scheduling a step ahead against scheduling it when the one before is done: generated tokens a second, both in turns.

python benchmarks/async_scheduling.py --model smollm2-135m --sequences 1 8 64
"""

from __future__ import annotations

import argparse
import statistics
import time

from fathom import LLM, SamplingParams

INPUT_TOKENS = 128


def tokens_per_second(llm: LLM, num_sequences: int, params: SamplingParams) -> float:
    """Of so many prompts at once; the same ones each time, so that all but their last block is in the prefix cache."""
    prompts = [[100 + (7 * i * i + sequence) % 5000 for i in range(INPUT_TOKENS)] for sequence in range(num_sequences)]
    start = time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    return sum(len(output.outputs[0].token_ids) for output in outputs) / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--output-len", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    params = SamplingParams(temperature=0, max_tokens=options.output_len, ignore_eos=True)
    plain, ahead = (LLM(options.model, show_progress=False, async_scheduling=wanted) for wanted in (False, True))
    print(f"{'sequences':>9}  {'in turn':>8}  {'ahead':>8}  ahead / in turn: median, least, most")
    for num_sequences in options.sequences:
        pairs = []
        for number in range(1 + options.rounds):  # the first warms up
            order = (plain, ahead) if number % 2 else (ahead, plain)
            found = {llm: tokens_per_second(llm, num_sequences, params) for llm in order}
            pairs.append((found[plain], found[ahead]))
        in_turn, one_ahead = (statistics.median(side) for side in zip(*pairs[1:], strict=True))
        ratios = sorted(later / first for first, later in pairs[1:])
        spread = f"{statistics.median(ratios):.2f}, {ratios[0]:.2f}, {ratios[-1]:.2f}"
        print(f"{num_sequences:9,}  {in_turn:8,.0f}  {one_ahead:8,.0f}  {spread}", flush=True)


if __name__ == "__main__":
    main()
