"""What a place in a request may hold, read from the protocol's types; for the message about what it may not."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import inspect

_STEP = re.compile(r"[^.\[\]]+|\[[^\]]*\]")


def choices_at(kind: type, place: str) -> list[str]:
    """The words that a field of a few words takes, such as a role, or a block's type.

    Args:
        place: as msgspec writes it: `messages[0].content[1].type`.
    """
    found = [inspect.type_info(kind)]
    for step in _STEP.findall(place):
        found = [inner for outer in found for inner in _into(outer, step)]
    literals = [part for outer in found for part in _parts(outer) if isinstance(part, inspect.LiteralType)]
    return list(dict.fromkeys(repr(value) for literal in literals for value in literal.values))


def _into(kind: inspect.Type, step: str) -> Iterator[inspect.Type]:
    for part in _parts(kind):
        if isinstance(part, inspect.ListType) and step.startswith("["):
            yield part.item_type
        elif isinstance(part, inspect.StructType):
            if step == part.tag_field and part.tag is not None:
                yield inspect.LiteralType((part.tag,))
            yield from (field.type for field in part.fields if field.encode_name == step)


def _parts(kind: inspect.Type) -> Iterator[inspect.Type]:
    """The alternatives of a union; of other types, the type itself."""
    if isinstance(kind, inspect.Metadata):
        yield from _parts(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for part in kind.types:
            yield from _parts(part)
    else:
        yield kind
