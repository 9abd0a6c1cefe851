"""Fathom as it comes, with its engine in a process of its own.  run_fathom.py MODEL THREADS"""

from __future__ import annotations

import sys

from loop import serve

from fathom import LLM, SamplingParams


def main() -> None:
    with LLM(sys.argv[1], num_threads=int(sys.argv[2]), show_progress=False) as llm:

        def generate(prompts: list[list[int]], output_lens: list[int]) -> list[int]:
            params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in output_lens]
            return [len(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]

        serve(generate)


if __name__ == "__main__":
    main()
