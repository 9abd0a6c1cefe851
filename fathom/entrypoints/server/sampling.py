"""From the fields of a request to SamplingParams."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fathom.entrypoints.server.errors import bad_request
from fathom.entrypoints.server.protocol.common import GenerationRequest
from fathom.entrypoints.server.serving import Serving
from fathom.sampling_params import RequestOutputKind, SamplingParams

_FROM_MODEL = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_IF_GIVEN = ("presence_penalty", "frequency_penalty")
_OWN_MAX_TOKENS = SamplingParams().max_tokens
_AS_THEY_ARE = (
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "logits_processors",
)


def sampling_params(
    serving: Serving,
    request: GenerationRequest,
    *,
    n: int,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None,
    explain: bool,
    deltas: bool,
) -> SamplingParams:
    """The parameters of one prompt of a request. What it leaves out is the model's default, as generation_config says.

    Args:
        explain: choose the seed now, so that it can be told.
        deltas: outputs as they come; else one in the end.

    Raises:
        ValidationError, ApiError: a value that cannot be.
    """
    mode = serving.engine.config.model.logprobs_mode
    if request.logprobs_mode not in (None, mode):
        raise bad_request(
            f"logprobs_mode={request.logprobs_mode} is not supported: this engine reports {mode}.", "logprobs_mode"
        )
    _refuse_constructors(request.logits_processors or ())
    defaults = serving.engine.input_processor.default_params
    values: dict[str, Any] = {name: getattr(request, name) for name in _AS_THEY_ARE}
    values |= {name: getattr(defaults, name) for name in _FROM_MODEL}
    for name in (*_FROM_MODEL, *_IF_GIVEN):
        if (given := getattr(request, name)) is not None:
            values[name] = given
    if explain and values["seed"] is None:
        values["seed"] = serving.engine.input_processor.draw_seed()
    return SamplingParams(
        n=n,
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        output_kind=RequestOutputKind.DELTA if deltas else RequestOutputKind.FINAL_ONLY,
        extra_args=request.vllm_xargs,
        **values,
    )


def _refuse_constructors(processors: Iterable[str | dict[str, Any]]) -> None:
    """A request does not choose what code runs: vLLM once had classes and their arguments here."""
    for constructor in processors:
        if not isinstance(constructor, str):
            raise bad_request(
                f"logits_processors holds a constructor, of {constructor.get('qualname')!r:.100}: processors are made "
                "when the server starts, see --logits-processors. Name a loaded one; vllm_xargs has arguments.",
                "logits_processors",
            )


def fit_max_tokens(serving: Serving, wanted: int | None, prompt_length: int, default: int | None) -> int:
    """Most tokens of an answer: as wanted, else by default, else the rest of the context; cut to that in any case."""
    rest = serving.engine.input_processor.max_model_len - prompt_length
    limit = default if wanted is None else wanted
    return max(1, rest if limit is None else min(limit, rest))


def default_max_tokens(serving: Serving) -> int | None:
    """What the model's generation_config says, if it does."""
    found = serving.engine.input_processor.default_params.max_tokens
    return None if found == _OWN_MAX_TOKENS else found
