"""Fixtures for tests with real engine processes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.client.processes import Script


@pytest.fixture(scope="module")
def model(endless: Path) -> Path:
    return endless


@pytest.fixture
def tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The place for temporary files, of this process and of scripts, short and of the test's own."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture
def run(model: Path, tmp: Path) -> Iterator[Callable[..., Script]]:
    """run(code): start a script; it is killed with the test if need be."""
    scripts: list[Script] = []

    def start(code: str, *, path: Path = model, **env: str) -> Script:
        scripts.append(Script(code, path, tmp, **env))
        return scripts[-1]

    yield start
    for script in scripts:
        script.kill()
        for process in script.left():
            process.kill()
