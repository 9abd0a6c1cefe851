"""`fathom serve [MODEL]`: an OpenAI-compatible server."""

from __future__ import annotations

import argparse
from typing import Any

from fathom.compat.server_flags import check_vllm_server_flags, vllm_only_server_flags
from fathom.config import EngineConfig
from fathom.entrypoints.cli.engine_flags import (
    add_engine_flags,
    add_flags,
    add_unlisted_flags,
    config_from_flags,
    given_flags,
)
from fathom.entrypoints.server.settings import ServerSettings, iter_settings
from fathom.errors import ConfigError

ITL_TARGET_MS = 150.0
"""Six tokens a second at the slowest, about as fast as people read."""

_ALIASES = {
    "max_queue": "--max-num-queued-reqs",
    "max_queue_tokens": "--max-num-queued-tokens",
    "log_requests": "--enable-log-requests",
}
"""vLLM's names."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_name", nargs="?", metavar="MODEL", help="the same as --model")
    add_flags(parser, "server", iter_settings(), _ALIASES)
    add_unlisted_flags(parser, "vllm_server.", vllm_only_server_flags())
    add_engine_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal comes (0) or the engine is gone (1). What is wrong with a flag is found before anything."""
    check_vllm_server_flags(given_flags(options, "vllm_server"))
    given: dict[str, Any] = {name: _as_tuple(value) for name, value in given_flags(options, "server").items()}
    settings = ServerSettings(**given)
    _take_model_name(options)
    config = _with_latency_target(config_from_flags(options))
    import uvloop

    from fathom.entrypoints.server.lifecycle import serve

    return uvloop.run(serve(config, settings))


def _take_model_name(options: argparse.Namespace) -> None:
    """MODEL is another way to write --model.

    Raises:
        ConfigError: both are given, and differ.
    """
    name, flag = options.model_name, given_flags(options, "engine").get("model")
    if name is None:
        return
    if flag not in (None, name):
        raise ConfigError(
            f"--model={flag} contradicts the argument {name}.", parameter="model", value=flag, hint="Give one of them."
        )
    setattr(options, "engine.model", name)


def _with_latency_target(config: EngineConfig) -> EngineConfig:
    """Size steps to what a stream's reader may be made to wait, unless the flags say how large they are."""
    scheduler = config.scheduler
    given = scheduler.itl_target_ms is not None or scheduler.max_num_batched_tokens is not None
    return config if given or not scheduler.enable_chunked_prefill else config.replace(itl_target_ms=ITL_TARGET_MS)


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
