"""What `fathom chat --base-url` and `fathom bench serve` know of OpenAI's API: addresses, models, streams, errors.

Any server may answer, so only the fields that all of them send are looked at, and any of these may be missing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from fathom import env
from fathom.entrypoints.cli.engine_flags import given_flags
from fathom.errors import ConfigError, RequestFailedError, ServerError

if TYPE_CHECKING:
    import httpx2

CONNECT_SECONDS = 10.0
NOT_ABOUT_AN_ENGINE = {"model", "seed", "show_progress"}
"""Engine options that mean something to a client: which model to ask, what to make up, whether to draw bars."""


class Delta(msgspec.Struct):
    """What a chunk adds to a chat's answer. The second name of the reasoning is that of some servers."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    @property
    def text(self) -> str:
        return (self.reasoning_content or self.reasoning or "") + (self.content or "")


class Choice(msgspec.Struct):
    """One answer's part of a chunk: text of a completion, delta of a chat."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None

    @property
    def piece(self) -> str:
        """The text that is new, reasoning included."""
        return self.text or (self.delta.text if self.delta is not None else "")


class Usage(msgspec.Struct):
    """Tokens as the server counts them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Chunk(msgspec.Struct):
    """One event of a stream. error: the server's, in whatever shape it has."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None


class EventReader:
    """Turns the bytes of a stream of server-sent events, cut anywhere, into chunks."""

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(Chunk).decode
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Chunk]:
        """The chunks that are complete with these bytes.

        Raises:
            RequestFailedError: an event is an error, or is no JSON.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            content = line[5:].strip() if line.startswith(b"data:") else b""
            if not content or content == b"[DONE]":
                continue
            try:
                chunk = self._decode(content)
            except msgspec.MsgspecError as error:
                raise RequestFailedError(f"the server sent what is no chunk: {content[:80]!r} ({error})") from None
            if chunk.error is not None:
                raise RequestFailedError(error_text(content))
            yield chunk


@dataclass(frozen=True)
class Remote:
    """A server. url: without a path. model: the name that requests carry. headers: of every request."""

    url: str
    model: str
    headers: dict[str, str]


def add_remote_flags(parser: argparse.ArgumentParser) -> None:
    """--base-url and --api-key."""
    group = parser.add_argument_group("server")
    group.add_argument("--base-url", metavar="URL", help="a server of OpenAI's API, such as http://127.0.0.1:8000")
    group.add_argument("--api-key", metavar="KEY", help="key that the server wants (default: FATHOM_API_KEY)")


def remote_from_flags(options: argparse.Namespace) -> Remote:
    """The server of --base-url. Its model is --model, else the first that it names.

    Raises:
        ConfigError: an engine option was given; it would have no effect on a server.
        ServerError: nobody answers there, or not as such a server does.
    """
    given = given_flags(options, "engine")
    for name in sorted(given.keys() - NOT_ABOUT_AN_ENGINE):
        raise ConfigError(
            f"{name} is an option of an engine, and --base-url names a server that runs already.",
            parameter=name,
            value=given[name],
            hint="Leave one of the two out.",
        )
    url = options.base_url.rstrip("/").removesuffix("/v1")
    if not url.startswith(("http://", "https://")):
        raise ConfigError(
            f"--base-url must begin with http:// or https://, got {options.base_url!r}.",
            parameter="base_url",
            value=options.base_url,
        )
    headers = headers_from_flags(options)
    return Remote(url, given.get("model") or _first_model(url, headers), headers)


def headers_from_flags(options: argparse.Namespace) -> dict[str, str]:
    """Headers of every request, with the key if there is one."""
    key = options.api_key or next(iter(env.api_keys()), None)
    return {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})


def error_text(content: bytes) -> str:
    """The message of an error, from an answer's body or an event."""
    try:
        found = msgspec.json.decode(content)
    except msgspec.MsgspecError:
        return content[:200].decode(errors="replace").strip()
    error = found.get("error", found) if isinstance(found, dict) else found
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


def unreachable(url: str, error: httpx2.HTTPError) -> ServerError:
    """The error for a server that cannot be talked to."""
    return ServerError(f"no answer from {url}: {error or type(error).__name__}. Is the server running?")


def _first_model(url: str, headers: dict[str, str]) -> str:
    import httpx2

    try:
        answer = httpx2.get(f"{url}/v1/models", headers=headers, timeout=CONNECT_SECONDS)
    except httpx2.HTTPError as error:
        raise unreachable(url, error) from None
    if answer.status_code != 200:
        raise ServerError(f"{url}/v1/models answers {answer.status_code}: {error_text(answer.content)}")
    try:
        return str(answer.json()["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise ServerError(f"{url}/v1/models names no model; give --model.") from None
