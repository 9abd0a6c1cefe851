"""What the process boundary costs, measured with a tiny model of random weights.

The round trip of a call of two tokens, with a prompt of eight, beyond the model's own steps (target: 1 ms), in-process
and across the boundary, and the submission of 1,000 prompts (target: 150 ms).

    python benchmarks/ipc.py --rounds 1000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from table import print_header, print_row

from fathom import AsyncLLM, EngineConfig, LLMEngine, SamplingParams
from fathom.core.engine_core import EngineCore
from fathom.frontend import boot
from fathom.sampling_params import RequestOutputKind
from fathom.wire.codec import Encoder
from fathom.wire.messages import AddRequests, EngineCoreRequest

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "vocab_size": 49152,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": True,
}
TWO_TOKENS = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)
"""As LLM.generate asks: for the whole answer at once."""
PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]
TEXT = "The fathom is a unit of length that seamen have used to measure the depth of water since long ago. "


def make_config(folder: Path, tokenizer: str, **options: Any) -> EngineConfig:
    (folder / "config.json").write_text(json.dumps(SHAPE))
    return EngineConfig.from_options(
        model=str(folder), load_format="dummy", tokenizer=tokenizer, num_threads=1, show_progress=False, **options
    )


def model_steps(config: EngineConfig, rounds: int) -> list[float]:
    """Milliseconds of executing and sampling alone, in all steps of a call."""
    core = EngineCore(boot.prepare(config).setup)
    samples = []
    for number in range(rounds):
        request = EngineCoreRequest(str(number), prompt=0, params=0, seed=0)
        core.add_requests(AddRequests([np.array(PROMPT, np.int32)], [TWO_TOKENS], [request]))
        seconds = 0.0
        while core.scheduler.has_unfinished_requests():
            step = core.scheduler.schedule()
            start = time.perf_counter()
            core.executor.execute_model(step)
            result = core.executor.sample_tokens().result()[0]
            seconds += time.perf_counter() - start
            core.scheduler.update_from_output(step, result)
        samples.append(seconds * 1000)
    core.close()
    return samples


def round_trips(config: EngineConfig, rounds: int) -> list[float]:
    """Milliseconds from a request's submission to its last output, for a blocking engine."""
    samples = []
    with LLMEngine(config) as engine:
        for number in range(rounds):
            start = time.perf_counter()
            engine.add_request(str(number), PROMPT, TWO_TOKENS)
            while engine.has_unfinished_requests():
                engine.step()
            samples.append((time.perf_counter() - start) * 1000)
    return samples


async def async_round_trips(config: EngineConfig, rounds: int) -> list[float]:
    """The same for AsyncLLM."""
    samples = []
    engine = await AsyncLLM.start(config)
    for number in range(rounds):
        start = time.perf_counter()
        async for _ in engine.generate(PROMPT, TWO_TOKENS, str(number)):
            pass
        samples.append((time.perf_counter() - start) * 1000)
    engine.shutdown()
    return samples


def submissions(config: EngineConfig, prompts: list[Any], rounds: int) -> tuple[list[float], list[AddRequests]]:
    """Milliseconds to submit all prompts at once, and the messages of one submission."""
    samples = []
    with LLMEngine(config) as engine:
        messages: list[AddRequests] = []
        add = engine.engine_core.add_requests
        engine.engine_core.add_requests = lambda message: (messages.append(message), add(message))[1]  # type: ignore
        for number in range(rounds):
            messages.clear()
            ids = [f"{number}-{index}" for index in range(len(prompts))]
            start = time.perf_counter()
            engine.add_requests(ids, prompts, [TWO_TOKENS] * len(prompts))
            samples.append((time.perf_counter() - start) * 1000)
            engine.abort_request(ids)
            engine.get_stats()  # answered when the aborts are through
    return samples, messages


def print_messages(messages: list[AddRequests]) -> None:
    frames = [Encoder().encode(message) for message in messages]
    size = sum(len(frame) for message in frames for frame in message)
    print(f"    {len(messages)} messages, {sum(map(len, frames))} frames, {size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000, help="round trips; submissions take a hundredth")
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--tokenizer", default="smollm2-135m")
    options = parser.parse_args()
    logging.getLogger("fathom").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        config = make_config(Path(folder), options.tokenizer)
        ways = {
            "in-process": round_trips(config.replace(multiprocess=False), options.rounds),
            "own process": round_trips(config.replace(multiprocess=True), options.rounds),
            "own process, asyncio": asyncio.run(async_round_trips(config, options.rounds)),
        }
        steps = model_steps(config, options.rounds)
        print_header("ms")
        print_row("model steps", steps)
        for name, samples in ways.items():
            print_row(f"round trip, {name}", samples)
            print_row("    beyond the median of these", [sample - statistics.median(steps) for sample in samples])
        texts = [f"{number}: {TEXT * 3}" for number in range(options.prompts)]
        token_ids = [[number % 1000 + 5] * 64 for number in range(options.prompts)]
        for name, prompts in (("texts", texts), ("lists of 64 ids", token_ids)):
            samples, messages = submissions(config, prompts, max(1, options.rounds // 100))
            print_row(f"submitting {len(prompts):,} {name}", samples)
            print_messages(messages)


if __name__ == "__main__":
    main()
