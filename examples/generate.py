"""Continue a few texts, all in one batch.

python examples/generate.py [MODEL]
"""

from __future__ import annotations

import sys

from fathom import LLM, SamplingParams

PROMPTS = ["The sea is", "A fathom is", "The capital of France is", "def fibonacci(n):"]

model = sys.argv[1] if sys.argv[1:] else "smollm2-135m"
with LLM(model) as llm:
    for output in llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=24)):
        answer = output.outputs[0]
        print(f"{output.prompt!r} -> {answer.text!r} ({len(answer.token_ids)} tokens, {answer.finish_reason})")
