"""How a field of a request is described: its type, its words for the docs, and, if it is one of those, its refusal."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

Doc = msgspec.Meta
"""Doc(description=..., ge=..., max_length=...): the words and limits of a field."""


ModelName = Annotated[str, Doc(max_length=512)]
StopString = Annotated[str, Doc(max_length=4096)]
BadWord = Annotated[str, Doc(max_length=256)]
ProcessorName = Annotated[str, Doc(max_length=512)]


@dataclass(frozen=True)
class Refusal:
    """A known field that is not supported: why, and which values mean nothing and may pass."""

    why: str
    neutral: tuple[Any, ...] = ()

    def lets_pass(self, value: Any) -> bool:
        """Whether the value means nothing. False is not 0, as it is not in JSON."""
        if value is None:
            return True
        is_flag = isinstance(value, bool)
        return any(value == other and is_flag is isinstance(other, bool) for other in self.neutral)


def refused(why: str, *neutral: Any) -> msgspec.Meta:
    """The Meta of a field that is refused by name unless it is null or one of the neutral values."""
    allowed = "".join(f" or {value!r}" for value in neutral)
    return msgspec.Meta(
        description=f"Refused unless null{allowed}: {why}.",
        extra={"refusal": Refusal(why, neutral)},
        extra_json_schema={"enum": [None, *neutral]},
    )


@dataclass(frozen=True)
class FieldInfo:
    """One field as the docs show it; kind still has the limits in it."""

    name: str
    kind: Any
    default: Any
    description: str
    refusal: Refusal | None


@cache
def fields_of(struct: type[msgspec.Struct]) -> tuple[FieldInfo, ...]:
    """Every field of a request type, in order."""
    hints = get_type_hints(struct, include_extras=True)
    found = []
    for field in msgspec.structs.fields(struct):
        hint, description, refusal = hints[field.name], "", None
        if get_origin(hint) is Annotated:
            for meta in get_args(hint)[1:]:
                description = meta.description or description
                refusal = (meta.extra or {}).get("refusal", refusal)
        found.append(FieldInfo(field.encode_name, hint, field.default, description, refusal))
    return tuple(found)


@cache
def refusals_of(struct: type[msgspec.Struct]) -> tuple[tuple[str, Refusal], ...]:
    """(field, refusal) of the fields that are not supported."""
    return tuple((field.name, field.refusal) for field in fields_of(struct) if field.refusal is not None)
