"""From a resolved model to its ModelConfig, whatever the format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fathom.errors import CheckpointError
from fathom.model_config.gguf import from_gguf
from fathom.model_config.hugging_face import from_hf_config
from fathom.model_config.values import ModelConfig
from fathom.weights.gguf import GGUFFile
from fathom.weights.resolve import ResolvedModel


def load_model_config(resolved: ResolvedModel) -> ModelConfig:
    """The ModelConfig of a folder's config.json or of a GGUF file's header.

    Raises:
        CheckpointError: a file is missing or corrupt, or lacks a key; names file and key.
        UnsupportedModelError: an architecture or option that Fathom does not implement.
    """
    if resolved.format == "gguf":
        return from_gguf(GGUFFile(resolved.path))
    path = resolved.path / "config.json"
    return from_hf_config(_read_json(path), load_generation_config(resolved), source=str(path))


def load_generation_config(resolved: ResolvedModel) -> dict[str, Any]:
    """generation_config.json as it stands, or {} where the model has none."""
    path = resolved.path / "generation_config.json"
    return _read_json(path) if path.is_file() else {}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}.", parameter="model", value=str(path)) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must hold a JSON object.", parameter="model", value=str(path))
    return content
