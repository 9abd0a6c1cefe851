"""`fathom doctor`: what this machine offers, what is installed, and what Fathom would choose."""

from __future__ import annotations

import argparse
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import fathom
from fathom import env
from fathom.config import EngineConfig
from fathom.errors import ClientError
from fathom.hardware import Hardware, cpu_features, detect_hardware
from fathom.model_config import load_model_config
from fathom.resolve import resolve
from fathom.weights.catalogue import CATALOGUE
from fathom.weights.download import cached_path, is_cached
from fathom.weights.resolve import resolve_model

_PACKAGES = ("torch", "numpy", "msgspec", "pyzmq", "tokenizers", "safetensors", "jinja2", "huggingface_hub")

_ERROR = "error"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", help="show what would be chosen for this model (default: those that are here)"
    )


def run(options: argparse.Namespace) -> int:
    """Print a section for each thing that may be wrong."""
    hardware = detect_hardware()
    _section("versions", _versions())
    _section("machine", _machine(hardware))
    _section("models", [(name, _state(name)) for name in CATALOGUE] + [("cache", str(env.cache_dir()))])
    here = [name for name in CATALOGUE if is_cached(CATALOGUE[name])]
    found = True
    for name in [options.model] if options.model else here:
        choices = _choices(name, hardware)
        _section(f"choices for {name}", choices)
        found = found and choices[0][0] != _ERROR
    return 0 if found else 1


def _section(title: str, rows: list[tuple[str, str]]) -> None:
    print(title)
    for name, value in rows:
        print(f"  {name:22s} {value}")


def _versions() -> list[tuple[str, str]]:
    rows = [("fathom", fathom.__version__), ("python", sys.version.split()[0])]
    for name in _PACKAGES:
        try:
            rows.append((name, version(name)))
        except PackageNotFoundError:
            rows.append((name, "MISSING"))
    return rows


def _machine(hardware: Hardware) -> list[tuple[str, str]]:
    gib = 2**30
    return [
        ("system", f"{platform.system()} {platform.machine()}"),
        ("cores", f"{hardware.cores} for this process"),
        ("CPU features", ", ".join(cpu_features()) or "unknown"),
        ("native kernels", "here" if hardware.native_kernels else "MISSING; plain torch does their work, slower"),
        (
            "memory",
            f"{hardware.available_memory / gib:.1f} of {hardware.total_memory / gib:.1f} GiB available",
        ),
        ("device", _device()),
    ]


def _device() -> str:
    try:
        import torch
    except ImportError:
        return "none: torch is not installed"
    if torch.cuda.is_available():
        return f"cpu; cuda: {torch.cuda.get_device_name(0)} (used with --device cuda)"
    return "cpu"


def _state(name: str) -> str:
    entry = CATALOGUE[name]
    return f"here: {cached_path(entry)}" if is_cached(entry) else f"not here; `fathom pull {name}` fetches it"


def _choices(name: str, hardware: Hardware) -> list[tuple[str, str]]:
    if name in CATALOGUE and not is_cached(CATALOGUE[name]):
        return [("unknown", _state(name))]  # looking at it would fetch it
    try:
        model = resolve_model(name)
        model_config = load_model_config(model)
        _, reasons = resolve(EngineConfig.from_options(model=name), model_config, hardware)
    except ClientError as error:
        return [(_ERROR, str(error))]
    rows = [("architecture", f"{model_config.architecture}, {model_config.num_layers} layers")]
    return rows + [tuple(reason.split(": ", 1)) for reason in reasons]  # type: ignore[misc]
