"""Fields of vLLM's SamplingParams that Fathom's lacks."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from fathom.errors import ValidationError

_NOT_YET = "Fathom does not have it yet; leave it out."
_ALWAYS_SO = "logprobs are kept as arrays anyway."
_BEAMS = "Use LLM.beam_search with BeamSearchParams."
_DECODING = "Fathom has no structured output yet; say in the prompt what you want, or use allowed_token_ids."

_NEUTRAL_AND_WAY_OUT: dict[str, tuple[tuple[Any, ...], str]] = {
    "best_of": ((None,), "Ask for n answers, and keep the best by their cumulative_logprob."),
    "structured_outputs": ((None,), _DECODING),
    "guided_decoding": ((None,), _DECODING),
    "use_beam_search": ((None, False), _BEAMS),
    "length_penalty": ((None, 1.0), _BEAMS),
    "early_stopping": ((None, False), _BEAMS),
    "logprob_token_ids": ((None,), "Ask for logprobs=-1, with max_logprobs=-1 at the engine, and look these ids up."),
    "prompt_logprob_token_ids": ((None,), "Ask for prompt_logprobs=-1, with max_logprobs=-1 at the engine."),
    "prompt_logprob_start": ((None,), _NOT_YET),
    "flat_logprobs": ((None, False, True), _ALWAYS_SO),
    "stream_interval": ((None, 1), "A slow reader gets fewer and longer outputs by itself; leave it out."),
    "thinking_token_budget": ((None, -1), _NOT_YET),
    "repetition_detection": ((None,), "Use repetition_penalty, or end the request yourself."),
    "truncate_prompt_tokens": ((None,), "Cut the prompt yourself: llm.get_tokenizer().encode(text)[-count:]."),
    "watermarking": ((None,), _NOT_YET),
    "routed_experts_prompt_start": ((None, 0), _NOT_YET),
    "trace_decode_token_ids": ((None,), _NOT_YET),
    "skip_clone": ((None, False, True), "parameters are copied as needed."),
}


def drop_neutral_fields(given: dict[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """The fields that SamplingParams has, after those of vLLM's that change nothing were left out.

    Raises:
        ValidationError: a field asks for what Fathom does not do. TypeError: nobody knows this name.
    """
    known = frozenset(known)
    ours = {}
    for name, value in given.items():
        if name in known:
            ours[name] = value
        elif name not in _NEUTRAL_AND_WAY_OUT:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            raise TypeError(f"unknown sampling parameter {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        else:
            neutral, way_out = _NEUTRAL_AND_WAY_OUT[name]
            if not any(value is item or value == item for item in neutral):
                raise ValidationError(f"{name}={value!r} is not supported.", parameter=name, value=value, hint=way_out)
    return ours
