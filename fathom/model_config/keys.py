"""Keys: foreign configuration, read one checked key at a time.

A config.json or a GGUF header is outside data: each value is checked for its type where it is read, and what
is missing or wrong is reported with the file's name and the key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fathom.errors import CheckpointError, UnsupportedModelError


@dataclass(frozen=True)
class Keys:
    """Values of one file.

    Args:
        source: the file's name, for messages.
        values: key -> value.
        prefix: what every key starts with in the file ("llama." in GGUF); left out by the callers.
    """

    source: str
    values: dict[str, Any]
    prefix: str = ""

    def get(self, key: str, default: Any = None) -> Any:
        """The value, unchecked; `default` if the key is absent (a null that is present stays None)."""
        return self.values.get(self.prefix + key, default)

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer; absent or null without a default is an error."""
        value = self._present(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.corrupt(key, "must be a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number; absent or null without a default is an error."""
        value = self._present(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise self.corrupt(key, "must be a positive number")
        return float(value)

    def optional_integer(self, key: str, default: int | None = None) -> int | None:
        """A positive integer, or None for null."""
        return None if self.get(key, default) is None else self.integer(key, default)

    def optional_number(self, key: str) -> float | None:
        """A positive number, or None for null or absent."""
        return None if self.get(key) is None else self.number(key)

    def flag(self, key: str, default: bool) -> bool:
        """A boolean; null counts as absent."""
        value = self._present(key, default)
        if not isinstance(value, bool):
            raise self.corrupt(key, "must be true or false")
        return value

    def token_id(self, key: str, default: int | None = None) -> int | None:
        """A token id (0 or more), or None."""
        ids = self.token_ids(key, default)
        return ids[0] if ids else None

    def token_ids(self, key: str, default: int | None = None) -> tuple[int, ...]:
        """Token ids that the file gives as one number, as a list or not at all."""
        value = self.get(key, default)
        found = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in found):
            raise self.corrupt(key, "must be a token id or a list of them")
        return tuple(found)

    def corrupt(self, key: str, rule: str) -> CheckpointError:
        """The error for a value that cannot be."""
        name, value = self.prefix + key, self.get(key)
        return CheckpointError(f"{self.source}: {name} {rule}, got {value!r}.", parameter=name, value=value)

    def unsupported(self, key: str, known: str) -> UnsupportedModelError:
        """The error for a value that is legal and that Fathom does not implement."""
        value = self.get(key)
        return UnsupportedModelError(
            f"{self.source}: {self.prefix}{key}={value!r} is not supported; {known}.",
            parameter=self.prefix + key,
            value=value,
        )

    def _present(self, key: str, default: Any) -> Any:
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(
                f"{self.source} lacks the key {self.prefix}{key}.", parameter=self.prefix + key, value=None
            )
        return value
