"""Two answers at once with AsyncLLM, each printed as it comes.

python examples/stream.py [MODEL]
"""

from __future__ import annotations

import asyncio
import sys
import time

from fathom import AsyncLLM, EngineConfig, RequestOutputKind, SamplingParams


async def stream(engine: AsyncLLM, began: float, name: str, prompt: str) -> str:
    """Print each piece of an answer with the time at which it came; the whole of it."""
    params = SamplingParams(temperature=0, max_tokens=12, output_kind=RequestOutputKind.DELTA)
    text = ""
    async for output in engine.generate(prompt, params, request_id=name):
        piece = output.outputs[0].text
        print(f"{time.perf_counter() - began:6.3f} s  {name:>6}  {piece!r}")
        text += piece
    return text


async def main(model: str) -> None:
    engine = await AsyncLLM.start(EngineConfig.from_options(model=model, show_progress=False))
    try:
        prompts = {"sea": "The sea is", "fathom": "A fathom is"}
        began = time.perf_counter()
        texts = await asyncio.gather(*(stream(engine, began, name, prompt) for name, prompt in prompts.items()))
        print(f"whole answers: {texts}")
    finally:
        engine.shutdown()


asyncio.run(main(sys.argv[1] if sys.argv[1:] else "smollm2-135m"))
