"""Fixtures that every folder of tests may use: tiny models made on the spot, and the real default model."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fathom.hardware import limit_openmp_spinning

limit_openmp_spinning()  # before anything imports torch
os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton, as transformers may


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
