"""vLLM with its own process and its prefix cache.  run_vllm.py FOLDER DTYPE SEQUENCES"""

from __future__ import annotations

import sys

from loop import serve
from vllm import LLM, SamplingParams


def main() -> None:
    llm = LLM(sys.argv[1], dtype=sys.argv[2], max_num_seqs=int(sys.argv[3]), enable_prefix_caching=True)

    def generate(prompts: list[list[int]], output_lens: list[int]) -> list[int]:
        params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in output_lens]
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [len(output.outputs[0].token_ids) for output in llm.generate(inputs, params, use_tqdm=False)]

    serve(generate)


if __name__ == "__main__":
    main()
