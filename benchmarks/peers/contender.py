"""What the race wants of an engine, and the way that most engines give it: a script in their own environment.

An adapter is one file: how to install the engine, the forms that it can read a model in, and a Session that measures.
Its `measure` returns seconds, so that rates are made in one place.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from benchmarks.peers.environments import INSIDE, ContenderError
from benchmarks.peers.processes import end_with_children
from benchmarks.peers.servers import RivalServer
from benchmarks.peers.works import Decode, Prompts, Requests, Task, Work


class Session(Protocol):
    """An engine with a model, ready to work."""

    def measure(self, work: Work, round_number: int) -> float:
        """Seconds for the work with this round's prompts: of a Decode, of the generated tokens alone."""

    def close(self) -> None:
        """End whatever runs."""


class Contender(Protocol):
    """An engine that takes part. name: as in tables. slow_to_start: takes minutes, so its format is chosen once."""

    name: str
    slow_to_start: bool

    def install(self) -> str:
        """Install it if it is not there; its version."""

    def formats(self, work: Work) -> list[str]:
        """Names of the forms of the model, or of the engine, that it may do this work in; the best will race."""

    def open(self, model: Path, format_name: str, threads: int, log: Path) -> Session:
        """Start with the GGUF file of a model."""


class Served(Contender, Protocol):
    """One that has an HTTP server of OpenAI's completions too. server_per_load: it is set up for one load."""

    server_per_load: bool

    def serve(
        self, model: Path, format_name: str, work: Work, concurrency: int, threads: int, log: Path
    ) -> RivalServer:
        """A server that is ready for the work's requests, so many under way; its model has the name of the work's."""


def formats_to_try(contender: Contender, work: Work, wanted: Sequence[str], chosen_before: str | None) -> list[str]:
    """What a contender qualifies in. wanted: only these, if it has one of them. chosen_before: in another work."""
    if contender.slow_to_start and chosen_before is not None:
        return [chosen_before]
    formats = contender.formats(work)
    return [name for name in formats if name in wanted] or formats


def rate(task: Task, prompts: Prompts, seconds: float) -> float:
    """Tokens a second: of the prompt for a Prefill, else of the answers."""
    counted = prompts.output_lens if isinstance(task, (Decode, Requests)) else map(len, prompts.token_ids)
    return sum(counted) / seconds


class ScriptSession:
    """An engine behind a script of `inside/`, which answers batches of prompts and says how long they took."""

    def __init__(
        self,
        python: Path,
        script: str,
        arguments: list[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [str(python), str(INSIDE / script), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
            )
        try:
            self._read()  # "ready"
        except ContenderError:
            self.close()
            raise

    def measure(self, work: Work, round_number: int) -> float:
        prompts = work.prompts(round_number)
        if not isinstance(work.task, Decode):
            return self._generate(prompts)
        # Of a cached prompt too some tokens are computed again, how many depends on the cache: the time to the first
        # token of the answers is taken off, and the rest is that of all tokens but one.
        first_tokens = Prompts(prompts.token_ids, [1] * len(prompts.token_ids))
        self._generate(first_tokens)  # puts the prompts into the cache, if there is one
        first = self._generate(first_tokens)
        seconds = self._generate(prompts)
        return max(seconds - first, 1e-9) * work.task.output / (work.task.output - 1)

    def close(self) -> None:
        assert self._process.stdin is not None
        end_with_children(self._process, self._process.stdin.close)  # the script ends with its input

    def _generate(self, prompts: Prompts) -> float:
        assert self._process.stdin is not None
        request = {"prompts": prompts.token_ids, "output_lens": prompts.output_lens}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        if answer["output_lens"] != prompts.output_lens:
            raise ContenderError(f"answers of {answer['output_lens']} tokens instead of {prompts.output_lens}")
        return float(answer["seconds"])

    def _read(self) -> dict:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ContenderError(f"it ended; see {self._log}")
        return json.loads(line)
