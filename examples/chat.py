"""A conversation of three turns: each answer is appended, and the next turn finds it in the prefix cache.

python examples/chat.py [MODEL]
"""

from __future__ import annotations

import sys

from fathom import LLM, SamplingParams

QUESTIONS = ["What is the capital of France?", "And of Italy?", "Which of the two is older?"]

model = sys.argv[1] if sys.argv[1:] else "smollm2-135m"
messages = [{"role": "system", "content": "You answer in one short sentence."}]
with LLM(model) as llm:
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        (output,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=40), use_tqdm=False)
        answer = output.outputs[0].text
        messages.append({"role": "assistant", "content": answer})
        print(f"user: {question}\nassistant: {answer}")
        print(f"({output.num_cached_tokens} of {len(output.prompt_token_ids)} prompt tokens were cached)\n")
