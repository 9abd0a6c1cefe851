"""Sampling defaults of requests that bring no parameters: those of the model's generation_config.json."""

from __future__ import annotations

import logging
from typing import Any

from fathom.errors import ConfigError, ValidationError
from fathom.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

_TAKEN = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def default_sampling_params(generation_config: dict[str, Any], source: str) -> SamplingParams:
    """SamplingParams with the defaults that the model's authors chose.

    One log line names every value that is taken, since it changes what a caller gets who asked for nothing. A
    SamplingParams that a caller passes is used as it is. `do_sample: false` does not make requests greedy, as in
    vLLM: it is the library's switch, not the authors' advice.

    Args:
        source: the file's path, for errors.

    Raises:
        ConfigError: a value that SamplingParams refuses.
    """
    taken = {ours: generation_config[name] for name, ours in _TAKEN.items() if generation_config.get(name) is not None}
    neutral = SamplingParams()
    taken = {name: value for name, value in taken.items() if value != getattr(neutral, name)}
    if taken:
        words = ", ".join(f"{name}={value}" for name, value in taken.items())
        logger.info("default sampling parameters from the model's generation_config.json: %s", words)
    try:
        return SamplingParams(**taken)
    except ValidationError as error:
        field = next((name for name, ours in _TAKEN.items() if ours == error.parameter), error.parameter)
        raise ConfigError(
            f"{source} has a {field} that cannot be a default: {error}",
            parameter="generation_config",
            value=error.value,
            hint="Mend the file, or leave it out of account with generation_config='none'.",
        ) from error
