"""Fixtures that every folder of tests may use."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's GGUF file: the cached one, fetched if it is not here yet."""
    from fathom.weights.catalogue import CATALOGUE
    from fathom.weights.download import pull

    return pull(CATALOGUE["smollm2-135m"], show_progress=False)
