"""Arguments that vLLM's methods have and Fathom's cannot honour: None passes, anything else is refused by name."""

from __future__ import annotations

from typing import Any

from fathom.errors import ValidationError

_WAYS_OUT = {
    "lora_request": "Merge the adapter into the weights; Fathom has no LoRA yet.",
    "mm_processor_kwargs": "Fathom's models take text only.",
    "tokenization_kwargs": "Tokenise the prompt yourself, and pass {'prompt_token_ids': ids}.",
    "trace_headers": "Only fathom serve sends traces (--otlp-traces-endpoint).",
    "data_parallel_rank": "Each engine is one of its own.",
    "concurrency_limit": "All prompts are searched at once; pass fewer of them.",
    "pooling_params": "Fathom has no pooling models yet.",
    "timeout": "A call waits for its workers; one that hangs ends the engine by itself.",
}


def refuse_if_given(**arguments: Any) -> None:
    """Check arguments that must be None.

    Raises:
        ValidationError: one is not; it has the way out.
    """
    for name, value in arguments.items():
        if value is not None:
            raise ValidationError(
                f"{name}={value!r} is not supported.",
                parameter=name,
                value=value,
                hint=_WAYS_OUT.get(name, "Leave it out."),
            )
