"""OpenVINO GenAI, reading the GGUF file itself.  run_openvino.py MODEL {batching,plain} PROPERTY=VALUE ...

batching is the pipeline for many requests, with its prefix cache; plain the one for a single request. The properties
are OpenVINO's for the CPU.
"""

from __future__ import annotations

import sys

import numpy as np
import openvino
import openvino_genai
from loop import Generate, serve


def _config(output_len: int) -> openvino_genai.GenerationConfig:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = output_len
    config.ignore_eos = True
    config.do_sample = False
    config.apply_chat_template = False
    return config


def _tensor(token_ids: list[int]) -> openvino.Tensor:
    return openvino.Tensor(np.array([token_ids], np.int64))


def batching(model: str, properties: dict[str, str]) -> Generate:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching = True
    scheduler.cache_size = 4  # GB
    scheduler.max_num_seqs = 64
    scheduler.max_num_batched_tokens = 2048
    pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)

    def generate(prompts: list[list[int]], output_lens: list[int]) -> list[int]:
        results = pipeline.generate([_tensor(prompt) for prompt in prompts], [_config(n) for n in output_lens])
        return [len(result.m_generation_ids[0]) for result in results]

    return generate


def plain(model: str, properties: dict[str, str]) -> Generate:
    pipeline = openvino_genai.LLMPipeline(model, "CPU", **properties)

    def generate(prompts: list[list[int]], output_lens: list[int]) -> list[int]:
        ((prompt,), (output_len,)) = prompts, output_lens
        return [len(pipeline.generate(_tensor(prompt), _config(output_len)).tokens[0])]

    return generate


if __name__ == "__main__":
    make = {"batching": batching, "plain": plain}[sys.argv[2]]
    serve(make(sys.argv[1], dict(word.split("=", 1) for word in sys.argv[3:])))
