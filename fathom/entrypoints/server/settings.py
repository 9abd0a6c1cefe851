"""ServerSettings: every option of the server, once, with its type, its default and one line of help.

Flags and docs are generated from these fields, as the engine's are from config.py.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

from fathom import env
from fathom.config import option
from fathom.entrypoints.server.parsing import make_parser
from fathom.entrypoints.server.tls import check_tls
from fathom.entrypoints.server.tracing import check_endpoint
from fathom.errors import ConfigError


@dataclass(frozen=True)
class ServerSettings:
    """How the engine is served.

    Raises:
        ConfigError: a value that cannot be, before anything is started.
    """

    host: str = option("127.0.0.1", "Address to listen at; 0.0.0.0 for all.")
    port: int = option(8000, "Port to listen at; 0 for any free one.")
    uds: str | None = option(None, "Path of a unix socket to listen at, instead of host and port.")
    root_path: str = option("", "Path under which a proxy publishes the server, whether it passes it on or not.")
    ssl_certfile: str | None = option(None, "File with the certificate, which makes it https.")
    ssl_keyfile: str | None = option(None, "File with the certificate's key, if that is another one.")
    ssl_ca_certs: str | None = option(None, "File with the authorities of clients' certificates.")
    ssl_cert_reqs: int = option(0, "Clients' certificates: 0 not asked for, 1 checked if there, 2 needed.")
    api_key: tuple[str, ...] = option(
        (), "Key that clients must send; may be given several times; also FATHOM_API_KEY."
    )
    served_model_name: tuple[str, ...] = option((), "Name of the model for clients; may be given several times.")
    allowed_origins: tuple[str, ...] = option((), "Origin of web pages that may ask, or *; none by default.")
    allowed_methods: tuple[str, ...] = option(("GET", "POST"), "Method that such pages may use, or *.")
    allowed_headers: tuple[str, ...] = option(("*",), "Header that such pages may send, or *.")
    allow_credentials: bool = option(False, "Let such pages' browsers send cookies, which a proxy may want.")
    enable_admin: bool = option(False, "Serve /reset_prefix_cache, /start_profile and /stop_profile.")
    profile_folder: str = option("fathom-profile", "Where /start_profile has its traces written.")

    chat_template: str | None = option(None, "A file with a Jinja template, or the template, for chats.")
    default_chat_template_kwargs: str | None = option(None, "Variables of the chat template, as a JSON object.")
    trust_request_chat_template: bool = option(False, "Let requests bring a chat template of their own.")
    response_role: str = option("assistant", "Role of answers.")
    tool_call_parser: str | None = option(None, "Dialect of the model's tool calls; default: by its chat template.")
    reasoning_parser: str | None = option(None, "Dialect of the model's reasoning; default: by its chat template.")
    enable_auto_tool_choice: bool = option(True, "Let the model choose to call tools; off: only tool_choice none.")

    api_server_count: int = option(1, "Processes that speak HTTP; they share the port and one engine.")
    max_queue: int = option(2048, "Most answers that wait for a place in the engine; more get 429.")
    max_queue_tokens: int | None = option(None, "Most prompt tokens of answers that have not begun; more get 429.")
    max_body_bytes: int = option(32 << 20, "Largest body of a request.")
    request_read_timeout: float = option(
        60.0, "Seconds that a client may take to send a request's head, and then its body; later is 408; 0: no limit."
    )
    request_timeout: float | None = option(None, "Seconds for a request that brings no limit of its own.")

    shutdown_timeout: float = option(8.0, "Seconds that running requests have after the signal to stop.")
    engine_stall_timeout: float = option(30.0, "Seconds without a sign of the engine after which /health says so.")
    restart_on_failure: bool = option(False, "Start the engine again if it dies, once; else the server ends.")
    log_requests: bool = option(False, "Log a line for each request.")
    uvicorn_log_level: Literal["critical", "error", "warning", "info", "debug", "trace"] = option(
        "warning", "What uvicorn, which speaks HTTP, is to log of itself."
    )
    otlp_traces_endpoint: str | None = option(
        None, "URL of an OpenTelemetry collector (OTLP over HTTP) that gets a trace of each request."
    )

    def __post_init__(self) -> None:
        for name in ("max_queue", "max_queue_tokens", "max_body_bytes", "port"):
            value = getattr(self, name)
            _require(value is None or value >= 0, name, value, "must not be negative")
        _require(self.api_server_count >= 1, "api_server_count", self.api_server_count, "must be at least 1")
        _require(self.port <= 65_535, "port", self.port, "must be at most 65535")
        for name in ("shutdown_timeout", "engine_stall_timeout", "request_timeout", "request_read_timeout"):
            value = getattr(self, name)
            _require(value is None or 0 <= value < math.inf, name, value, "must be a number of seconds")
        _require(self.uds is None or self.api_server_count == 1, "api_server_count", self.api_server_count, _ONE_FRONT)
        root = self.root_path
        _require(
            not root or (root[0] == "/" != root[-1]), "root_path", repr(root), "must begin with a slash and end without"
        )
        check_tls(self.ssl_certfile, self.ssl_keyfile, self.ssl_ca_certs, self.ssl_cert_reqs)
        for key in self.api_key:
            _require(key.isascii() and key.strip() == key != "", "api_key", "***", "must be a word of ASCII characters")
        if self.otlp_traces_endpoint is not None:
            check_endpoint(self.otlp_traces_endpoint)
        self.template_variables()
        make_parser(self.tool_call_parser, self.reasoning_parser, self.template_text())  # refuses unknown names

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys from the flags and the environment; none: everybody may ask."""
        return self.api_key + env.api_keys()

    def template_variables(self) -> dict[str, Any]:
        """default_chat_template_kwargs as a dictionary."""
        if self.default_chat_template_kwargs is None:
            return {}
        try:
            variables = json.loads(self.default_chat_template_kwargs)
        except ValueError:
            variables = None
        given = self.default_chat_template_kwargs
        _require(isinstance(variables, dict), "default_chat_template_kwargs", given, "must be a JSON object")
        return dict(variables)

    def template_text(self) -> str | None:
        """The chat template: a file's text, or the option itself if it looks like a template."""
        given = self.chat_template
        if given is None or "{{" in given or "{%" in given:
            return given
        try:
            return Path(given).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the chat template {given!r} cannot be read: {error}.",
                parameter="chat_template",
                value=given,
                hint="Give a file, or a template with {{ }} or {% %} in it.",
            ) from None


def iter_settings() -> Iterator[tuple[str, Any, Any, str]]:
    """(name, type, default, help) of every setting, in order."""
    hints = get_type_hints(ServerSettings)
    for item in dataclasses.fields(ServerSettings):
        yield item.name, hints[item.name], item.default, item.metadata["help"]


_ONE_FRONT = "must be 1 at a unix socket, whose connections the kernel does not spread"


def _require(holds: bool, name: str, value: Any, rule: str) -> None:
    if not holds:
        raise ConfigError(f"{name} {rule}, got {value}.", parameter=name, value=value)
