"""Sampling defaults of requests that bring no parameters: those of the model's generation_config.json."""

from __future__ import annotations

import logging
from typing import Any

from fathom.params import SamplingParams

logger = logging.getLogger(__name__)

_TAKEN = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def default_sampling_params(generation_config: dict[str, Any]) -> SamplingParams:
    """SamplingParams with the defaults that the model's authors chose.

    One log line names every value that is taken, since it changes what a caller gets who asked for nothing. A
    SamplingParams that a caller passes is used as it is. `do_sample: false` does not make requests greedy, as in
    vLLM: it is the library's switch, not the authors' advice.
    """
    taken = {name: generation_config[name] for name in _TAKEN if generation_config.get(name) is not None}
    if "max_new_tokens" in generation_config:
        taken["max_tokens"] = generation_config["max_new_tokens"]
    neutral = SamplingParams()
    taken = {name: value for name, value in taken.items() if value != getattr(neutral, name)}
    if taken:
        words = ", ".join(f"{name}={value}" for name, value in taken.items())
        logger.info("default sampling parameters from the model's generation_config.json: %s", words)
    return SamplingParams(**taken)
