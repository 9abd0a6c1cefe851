"""LLMEngine, step by step: requests join and leave while others are under way.

python examples/engine_loop.py [MODEL]
"""

from __future__ import annotations

import sys

from fathom import EngineConfig, LLMEngine, RequestOutput, RequestOutputKind, SamplingParams


def show(step: int, output: RequestOutput) -> None:
    answer = output.outputs[0]
    print(f"step {step:2}  {output.request_id:>6}  {answer.text!r:16} {answer.finish_reason or ''}")


model = sys.argv[1] if sys.argv[1:] else "smollm2-135m"
with LLMEngine(EngineConfig.from_options(model=model, show_progress=False)) as engine:
    delta = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    endless = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    engine.add_request("sea", "The sea is", endless)
    engine.add_request("fathom", "A fathom is", delta)
    step = 0
    while engine.has_unfinished_requests():
        step += 1
        for output in engine.step():
            show(step, output)
        if step == 3:
            engine.add_request("late", "Once upon a time", delta)
        if step == 8:
            for output in engine.abort_request(["sea"]):
                show(step, output)
