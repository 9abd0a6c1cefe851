"""Many questions about one text: the text is computed once, and the first token of the later answers comes sooner.

python examples/shared_prefix.py [MODEL]
"""

from __future__ import annotations

import sys

from fathom import LLM, SamplingParams

TEXT = (
    "A fathom is a unit of length equal to six feet. It is used for the depth of water. The word comes from the Old "
    "English for outstretched arms, since the unit was the span of a man's arms. Sailors measured depth with a lead "
    "line, a rope marked with leather and cloth, and called out the mark that was at the water. "
) * 3
QUESTIONS = ["How long is a fathom?", "What is it used for?", "Where does the word come from?"]

model = sys.argv[1] if sys.argv[1:] else "smollm2-135m"
with LLM(model) as llm:
    for question in QUESTIONS:
        messages = [{"role": "system", "content": TEXT}, {"role": "user", "content": question}]
        (output,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)
        first_token = output.metrics.first_token_time - output.metrics.arrival_time
        cached = f"{output.num_cached_tokens} of {len(output.prompt_token_ids)} tokens cached"
        print(f"{question} {output.outputs[0].text}\n  {cached}, first token after {first_token:.3f} s")
    print(llm.get_stats())
