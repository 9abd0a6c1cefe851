"""How sure was the model? Each token with its probability, and what it might have said instead.

python examples/logprobs.py [MODEL]
"""

from __future__ import annotations

import math
import sys

from fathom import LLM, SamplingParams

PROMPT = "The capital of France is"

model = sys.argv[1] if sys.argv[1:] else "smollm2-135m"
with LLM(model) as llm:
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=3, prompt_logprobs=0)
    (output,) = llm.generate(PROMPT, params, use_tqdm=False)

    print("prompt:")
    for token_id, position in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
        entry = position[token_id]
        print(f"  {entry.decoded_token!r:12} {math.exp(entry.logprob):7.2%}  rank {entry.rank}")

    answer = output.outputs[0]
    print("answer:")
    for token_id, position in zip(answer.token_ids, answer.logprobs, strict=True):
        chosen = position[token_id]
        others = [f"{e.decoded_token!r} {math.exp(e.logprob):.2%}" for i, e in position.items() if i != token_id]
        print(f"  {chosen.decoded_token!r:12} {math.exp(chosen.logprob):7.2%}  or {', '.join(others)}")
    print(f"logprob of the whole answer: {answer.cumulative_logprob:.3f}")
