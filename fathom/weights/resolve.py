"""resolve_model: from the name that a user types to a folder or a file on this machine.

Tried in order: a local folder or .gguf file, a short name of the catalogue, a Hugging Face repository. Each
step gives a ResolvedModel or the reason why it cannot; a name that resolves nowhere is reported with all of
the reasons.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fathom.errors import ModelNotFoundError
from fathom.weights.catalogue import CATALOGUE, DEFAULT_MODEL
from fathom.weights.download import pull

if TYPE_CHECKING:
    from fathom.model_config.values import CheckpointFormat

CONFIG_FILE = "config.json"
WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json")
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*(?<!\.gguf)", re.ASCII)

# What is fetched from a hub repository: no second copies of the weights in other formats, and no code.
CONFIG_PATTERNS = ["*.json", "*.jinja", "tokenizer.model"]
WEIGHT_PATTERNS = ["model*.safetensors"]


@dataclass(frozen=True)
class ResolvedModel:
    """Where a model lies.

    path: the folder that holds config.json and safetensors, or the .gguf file.
    name: the name that it was asked for by.
    """

    path: Path
    format: CheckpointFormat
    name: str


def resolve_model(
    name: str, revision: str | None = None, *, need_weights: bool = True, show_progress: bool = True
) -> ResolvedModel:
    """Find a model, downloading it if it has to be.

    Args:
        name: a path, a name of the catalogue, or a Hugging Face repository id.
        revision: branch, tag or commit; only repositories have revisions.
        need_weights: False if config.json is enough (load_format="dummy").
        show_progress: whether downloads draw a bar.

    Raises:
        ModelNotFoundError: nothing goes by that name, or it cannot be fetched; lists what was tried.
        CheckpointError: what was downloaded is damaged.
    """
    tried: list[str] = []
    if revision is not None:
        tried.append(f"local paths and the catalogue: not searched, since revision={revision!r} was given")
    else:
        for found in (_local_folder(name, need_weights), _gguf_file(name)):
            if isinstance(found, ResolvedModel):
                return found
            tried.append(found)
        if name in CATALOGUE:
            return ResolvedModel(pull(CATALOGUE[name], show_progress=show_progress), "gguf", name)
        tried.append(f"catalogue: holds {', '.join(CATALOGUE)}")
    found = _hub_repository(name, revision, need_weights)
    if isinstance(found, ResolvedModel):
        return found
    raise _not_found(name, [*tried, found])


def _local_folder(name: str, need_weights: bool) -> ResolvedModel | str:
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return f"local folder: {folder} is not one"
    missing = _missing_files(folder, need_weights)
    if missing:
        files = sorted(folder.glob("*.gguf"))
        instead = f", but {files[0]}, which can be named itself" if files else ""
        return f"local folder: {folder} has no {missing}{instead}"
    return ResolvedModel(folder, "safetensors", name)


def _gguf_file(name: str) -> ResolvedModel | str:
    path = Path(name).expanduser()
    if path.suffix != ".gguf":
        return "GGUF file: the name does not end in .gguf"
    return ResolvedModel(path, "gguf", name) if path.is_file() else f"GGUF file: {path} does not exist"


def _hub_repository(name: str, revision: str | None, need_weights: bool) -> ResolvedModel | str:
    if not HUB_ID.fullmatch(name):
        return "Hugging Face: the name is not of the form owner/repository"
    from huggingface_hub import snapshot_download  # takes a while to import

    patterns = CONFIG_PATTERNS + (WEIGHT_PATTERNS if need_weights else [])
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except Exception as error:  # whatever the client raises is one of the reasons to list
        return f"Hugging Face: {type(error).__name__}: {str(error).strip().rstrip('.')}"
    missing = _missing_files(folder, need_weights)
    if missing:
        return f"Hugging Face: {name} has no {missing}"
    return ResolvedModel(folder, "safetensors", name)


def _missing_files(folder: Path, need_weights: bool) -> str | None:
    if not (folder / CONFIG_FILE).is_file():
        return CONFIG_FILE
    if need_weights and not any((folder / file).is_file() for file in WEIGHT_FILES):
        return " or ".join(WEIGHT_FILES)
    return None


def _not_found(name: str, tried: list[str]) -> ModelNotFoundError:
    near = difflib.get_close_matches(name.lower(), CATALOGUE, n=1, cutoff=0.5)
    return ModelNotFoundError(
        f"The model {name!r} was not found. Tried: " + "; ".join(" ".join(reason.split()) for reason in tried) + ".",
        parameter="model",
        value=name,
        hint=f"Did you mean {near[0]!r}?" if near else f"{DEFAULT_MODEL!r} works out of the box.",
    )
