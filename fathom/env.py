"""Every environment variable that Fathom reads, each a function that reads it when called.

Three more belong to huggingface_hub, which reads them itself: HF_HOME (its cache folder), HF_HUB_OFFLINE
(1: never ask the hub) and HF_TOKEN (access to private and gated models).
"""

from __future__ import annotations

import os
from pathlib import Path

from fathom.errors import ConfigError

LOGGING_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def api_keys() -> tuple[str, ...]:
    """FATHOM_API_KEY: keys, separated by commas, of which clients of `fathom serve` must send one."""
    return tuple(key.strip() for key in os.environ.get("FATHOM_API_KEY", "").split(",") if key.strip())


def cache_dir() -> Path:
    """FATHOM_CACHE: where pulled models are kept; default $XDG_CACHE_HOME/fathom, else ~/.cache/fathom."""
    own = os.environ.get("FATHOM_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fathom"


def cpu_level() -> str | None:
    """FATHOM_CPU_LEVEL: instruction set level of the native kernels; None, the default, is the processor's best."""
    return os.environ.get("FATHOM_CPU_LEVEL") or None


def enable_multiprocessing() -> bool:
    """FATHOM_ENABLE_MULTIPROCESSING: 0 runs the engine in the caller's process; default 1."""
    value = os.environ.get("FATHOM_ENABLE_MULTIPROCESSING", "1")
    if value not in ("0", "1"):
        raise _invalid("FATHOM_ENABLE_MULTIPROCESSING", value, "must be 0 or 1")
    return value == "1"


def engine_ready_timeout() -> float:
    """FATHOM_ENGINE_READY_TIMEOUT_S: seconds that a starting engine process has to report; default 600."""
    value = os.environ.get("FATHOM_ENGINE_READY_TIMEOUT_S", "600")
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise _invalid("FATHOM_ENGINE_READY_TIMEOUT_S", value, "must be a positive number of seconds")
    return seconds


def in_engine_process() -> bool:
    """FATHOM_IN_ENGINE_PROCESS: not for users; 1 in a process that Fathom started for an engine."""
    return os.environ.get("FATHOM_IN_ENGINE_PROCESS") == "1"


def logging_level() -> str:
    """FATHOM_LOGGING_LEVEL: DEBUG, INFO, WARNING, ERROR or CRITICAL; default INFO."""
    value = os.environ.get("FATHOM_LOGGING_LEVEL", "INFO").upper()
    if value not in LOGGING_LEVELS:
        raise _invalid("FATHOM_LOGGING_LEVEL", value, f"must be one of {', '.join(LOGGING_LEVELS)}")
    return value


def plugins() -> list[str] | None:
    """FATHOM_PLUGINS: comma-separated names of the plugins to load; None, the default, means all."""
    value = os.environ.get("FATHOM_PLUGINS")
    return None if value is None else [name.strip() for name in value.split(",") if name.strip()]


def _invalid(name: str, value: str, rule: str) -> ConfigError:
    return ConfigError(f"The environment variable {name} {rule}, got {value!r}.", parameter=name, value=value)
