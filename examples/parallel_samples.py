"""Four answers to one prompt. With a seed they come out the same again, whatever else the engine is doing.

python examples/parallel_samples.py [MODEL]
"""

from __future__ import annotations

import sys

from fathom import LLM, SamplingParams

PROMPT = "My favourite place in the world is"

model = sys.argv[1] if sys.argv[1:] else "smollm2-135m"
params = SamplingParams(n=4, temperature=1.0, seed=7, max_tokens=16)
with LLM(model) as llm:
    (output,) = llm.generate(PROMPT, params, use_tqdm=False)
    for answer in output.outputs:
        print(f"{answer.index}: {answer.text!r}")

    others = ["Once upon a time", "In other news,", "Dear reader,"]
    *_, again = llm.generate([*others, PROMPT], [SamplingParams()] * 3 + [params], use_tqdm=False)
    print("the same among others:", [a.text for a in output.outputs] == [a.text for a in again.outputs])
