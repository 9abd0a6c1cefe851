"""The two files of a batch: lines in, whole lines out, and which rows the output has already.

Neither file is ever held in memory: of each row that has been read there remains the hash of its custom_id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import msgspec

from fathom.entrypoints.batch.rows import AnsweredRow, answer_identity_of
from fathom.errors import ConfigError

_BOM = b"\xef\xbb\xbf"
_CHUNK = 1 << 20


def check_paths(source: str, target: str) -> tuple[Path, Path]:
    """The two files as paths.

    Raises:
        ConfigError: an address instead of a file, no such file, or one file for both.
    """
    for name, given in (("input_file", source), ("output_file", target)):
        if "://" in given:
            raise ConfigError(
                f"{name} must be a local file, got {given!r}.",
                parameter=name,
                value=given,
                hint="Fetch it first, as with `curl -o batch.jsonl URL`; or upload the output afterwards.",
            )
    paths = Path(source).expanduser(), Path(target).expanduser()
    if not paths[0].is_file():
        raise ConfigError(f"input_file {source!r} is no file.", parameter="input_file", value=source)
    if paths[1].exists() and paths[0].samefile(paths[1]):
        raise ConfigError(
            "output_file is input_file itself.", parameter="output_file", value=target, hint="Name another file."
        )
    return paths


def count_lines(path: Path) -> int:
    """Number of lines in a file."""
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            count += chunk.count(b"\n")
            last = chunk[-1:]
    return count + (last != b"\n")


def read_lines(path: Path, longest: int) -> Iterator[tuple[int, bytes | None]]:
    """(number from 1, line) of each line that is not blank; None instead of one longer than `longest` bytes."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(longest + 1):
            number += 1
            if len(line) > longest and not line.endswith(b"\n"):
                _skip_line(file)
                yield number, None
                continue
            line = (line.removeprefix(_BOM) if number == 1 else line).strip()
            if line:
                yield number, line


def _skip_line(file: BinaryIO) -> None:
    while (rest := file.readline(_CHUNK)) and not rest.endswith(b"\n"):
        pass


class OutputFile:
    """The output, to which rows are added, each at once and whole.

    A file that is there already is gone on with. A last line without an end, of a run that was killed, is cut off.

    Raises:
        ConfigError: the file cannot be written, or is no output of a batch.
    """

    def __init__(self, path: Path):
        self._path = path
        self._answered: Counter[int] = Counter()  # hash of (custom_id, duplicate) -> rows that the file has
        try:
            self._file = path.open("r+b" if path.exists() else "x+b")
        except OSError as error:
            raise self._refusal(f"cannot be written: {error.strerror}", "Name another file.") from None
        try:
            self._file.truncate(self._read())
            self._file.seek(0, 2)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def num_answered(self) -> int:
        """Rows that the file had when it was opened, and that skip has not found again."""
        return self._answered.total()

    def skip(self, custom_id: str | None, duplicate: bool) -> bool:
        """Whether the file had a row for this one, which is told once of each."""
        key = hash((custom_id, duplicate))
        if not self._answered[key]:
            return False
        self._answered[key] -= 1
        return True

    def write(self, row: AnsweredRow) -> None:
        """Add a row.

        Raises:
            ConfigError: the disk is full, or the like.
        """
        try:
            self._file.write(msgspec.json.encode(row) + b"\n")
            self._file.flush()
        except OSError as error:
            raise self._refusal(f"cannot be written: {error.strerror}", "Make room and run it again.") from None

    def _read(self) -> int:
        """Note the rows; the length of all that are whole."""
        length = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            length += len(line)
            try:
                self._answered[hash(answer_identity_of(line))] += 1
            except msgspec.DecodeError:
                raise self._refusal("has lines that are no answers of a batch", "Name another file.") from None
        return length

    def _refusal(self, what: str, hint: str) -> ConfigError:
        return ConfigError(
            f"output_file {str(self._path)!r} {what}.", parameter="output_file", value=str(self._path), hint=hint
        )
