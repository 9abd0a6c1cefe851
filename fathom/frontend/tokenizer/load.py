"""load_tokenizer: the tokenizer of a model, from its folder or its GGUF file.

A folder's tokenizer.json says everything about encoding and decoding, with the special tokens that it puts
around a text; the files beside it name tokens (which one is BOS) and hold the chat template.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from fathom.errors import CheckpointError, UnsupportedModelError
from fathom.frontend.tokenizer.from_gguf import tokenizer_from_gguf
from fathom.frontend.tokenizer.tokenizer import ChatTemplate, Tokenizer
from fathom.model_config.values import CheckpointFormat
from fathom.weights.gguf import GGUFFile

_ADDED_TOKEN_KEYS = {"content", "single_word", "lstrip", "rstrip", "normalized", "special"}
_NOT_CONVERTED = ("tokenizer.model", "vocab.json", "tekken.json", "tiktoken.model")


def load_tokenizer(path: Path, format: CheckpointFormat) -> Tokenizer:
    """The tokenizer in a model folder ("safetensors") or a .gguf file ("gguf").

    Raises:
        CheckpointError: a file is corrupt or truncated; the message names it.
        UnsupportedModelError: there is no tokenizer, or one of a kind that Fathom does not read.
    """
    if format == "gguf":
        return tokenizer_from_gguf(path, GGUFFile(path).metadata)
    return _from_folder(path)


def _from_folder(folder: Path) -> Tokenizer:
    backend = _read_backend(folder)
    config = _read_json(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        # Written by older versions; the newer ones keep all of it in tokenizer_config.json.
        config |= _read_json(folder / "special_tokens_map.json")
    backend.add_tokens(_missing_added_tokens(backend, config))
    named = {
        name: content
        for name, value in config.items()
        if name.endswith("_token") and (content := _content(value)) is not None
    }
    extra = list(_extra_special_tokens(config))
    return Tokenizer(backend, named, extra, _read_chat_template(folder, config))


def _read_backend(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        found = [name for name in _NOT_CONVERTED if (folder / name).is_file()]
        raise UnsupportedModelError(
            f"{folder} holds no tokenizer.json" + (f", only {', '.join(found)}." if found else "."),
            parameter="tokenizer",
            value=str(folder),
            hint="Write one with transformers: AutoTokenizer.from_pretrained(p).save_pretrained(p). "
            "Or name a folder that has one with tokenizer=.",
        )
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for whatever it cannot parse
        raise CheckpointError(
            f"{path} is corrupt, truncated or of a newer format: {error}.",
            parameter="tokenizer",
            value=str(path),
            hint="Fetch the file again.",
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(
            f"{path} is corrupt or truncated: {error}.",
            parameter="tokenizer",
            value=str(path),
            hint="Fetch the file again.",
        ) from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds no JSON object.", parameter="tokenizer", value=str(path))
    return found


def _content(value: Any) -> str | None:
    """The text of a token that is written as a string or as an object with flags."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) and content else None


def _missing_added_tokens(backend: tokenizers.Tokenizer, config: dict[str, Any]) -> list[AddedToken]:
    """Added tokens that tokenizer_config.json lists and tokenizer.json lacks, by id."""
    listed = config.get("added_tokens_decoder", {})
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    missing = [listed[token_id] for token_id in sorted(listed, key=int) if _content(listed[token_id]) not in known]
    return [AddedToken(**{key: token[key] for key in _ADDED_TOKEN_KEYS & token.keys()}) for token in missing]


def _extra_special_tokens(config: dict[str, Any]) -> Iterator[str]:
    for name in ("additional_special_tokens", "extra_special_tokens"):
        listed = config.get(name) or []
        for value in listed.values() if isinstance(listed, dict) else listed:
            content = _content(value)
            if content is not None:
                yield content


def _read_chat_template(folder: Path, config: dict[str, Any]) -> ChatTemplate | None:
    """Template files come before the entry in tokenizer_config.json; several templates have names."""
    files = {"default": folder / "chat_template.jinja"}
    files |= {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    templates = {name: path.read_text(encoding="utf-8") for name, path in files.items() if path.is_file()}
    if not templates:
        entry = config.get("chat_template")
        if not isinstance(entry, list):
            return entry
        templates = {item["name"]: item["template"] for item in entry}
    return templates["default"] if templates.keys() == {"default"} else templates
