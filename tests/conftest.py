"""Fixtures that every folder of tests may use: tiny models made on the spot, and the real default model."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from fathom.hardware import limit_openmp_spinning

limit_openmp_spinning()  # before anything imports torch
os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton, as transformers may
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell has started this in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


ENDLESS_CONTEXT = 200_000


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's GGUF file: the cached one, fetched if it is not here yet."""
    from fathom.weights.catalogue import CATALOGUE
    from fathom.weights.download import pull

    return pull(CATALOGUE["smollm2-135m"], show_progress=False)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """tiny(name): the folder of the tiny model of that name (see tests/models/tiny.py), each made once."""
    from tests.models.tiny import make_tiny

    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = make_tiny(name, tmp_path_factory.mktemp(name))
        return made[name]

    return folder


@pytest.fixture(scope="session")
def endless(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a context that no answer gets through in minutes, on any machine.

    For what has to be under way still when a test acts, however late that is: without max_tokens, and ignore_eos=True.
    """
    folder = shutil.copytree(tiny("llama-gqa"), tmp_path_factory.mktemp("endless") / "llama-gqa")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": ENDLESS_CONTEXT}))
    return folder
