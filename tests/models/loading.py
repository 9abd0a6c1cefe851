"""load(path): a model from a folder or a .gguf file, the way that a worker loads it."""

from __future__ import annotations

from pathlib import Path

import torch

from fathom.dist.group import ALONE, Groups
from fathom.model_config import load_model_config
from fathom.models.decoder import CausalLM
from fathom.models.loader import load_model
from fathom.weights.resolve import ResolvedModel


def load(
    path: Path,
    *,
    load_format: str = "auto",
    weights: str = "dense",
    dtype: torch.dtype = torch.float32,
    quantization: str | None = None,
    activations: str = "int8",
    groups: Groups = ALONE,
) -> CausalLM:
    resolved = ResolvedModel(path, "gguf" if path.suffix == ".gguf" else "safetensors", path.name)
    return load_model(
        load_model_config(resolved),
        resolved,
        load_format=load_format,
        weights=weights,
        quantization=quantization,
        activations=activations,
        dtype=dtype,
        device=torch.device("cpu"),
        max_model_len=128,
        show_progress=False,
        groups=groups,
    )
