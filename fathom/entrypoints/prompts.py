"""What `LLM` is given, one or many: prompts, conversations, and a value for all or one for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from fathom.errors import ValidationError
from fathom.inputs import Prompt


def as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many: a text, a dictionary and a list of integers are one.

    Raises:
        ValidationError: it is neither.
    """
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    given: Any = prompts.tolist() if hasattr(prompts, "tolist") else prompts  # an array or a tensor
    if isinstance(given, (bytes, bytearray)) or not isinstance(given, Iterable):
        raise ValidationError(
            f"prompts must be a text, token ids, a dictionary or a list of these, got {type(prompts).__name__}.",
            parameter="prompts",
            value=prompts,
        )
    batch = list(given)
    return [batch] if batch and all(isinstance(item, Integral) for item in batch) else batch


def as_conversations(messages: Any) -> Sequence[Any]:
    """One conversation or many: a list of lists is many."""
    many = isinstance(messages, Sequence) and len(messages) > 0 and isinstance(messages[0], (list, tuple))
    return messages if many else [messages]


def one_for_each(name: str, value: Any, length: int) -> list[Any]:
    """A list as it is, anything else `length` times.

    Raises:
        ValidationError: a list of another length.
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != length:
            raise ValidationError(
                f"{name} has {len(value)} entries for {length} prompts.",
                parameter=name,
                value=len(value),
                hint="Give one for all, or one for each.",
            )
        return list(value)
    return [value] * length
