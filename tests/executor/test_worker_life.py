"""A worker that ends or hangs is the engine's end, said with rank, reason and place; nothing is ever left behind."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from fathom import LLM, SamplingParams
from fathom.config import ParallelOptions
from fathom.errors import CheckpointError, ConfigError, EngineDeadError, ValidationError
from fathom.executor.workers import end_workers, start_workers
from tests.client.processes import Script, comes_true, is_gone, title_of
from tests.executor import faults
from tests.worker import delayed_device

LONG = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
PROMPTS = [[i % 300 + 5, 7] for i in range(500)]


@pytest.fixture
def fault_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    faults.write_plugin(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(faults.FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture
def llm(tiny: Callable[[str], Path], fault_folder: Path) -> Iterator[LLM]:
    with start(tiny("llama-gqa")) as llm:
        yield llm


def start(folder: Path, **options: int) -> LLM:
    return LLM(str(folder), tensor_parallel_size=2, num_threads=2, max_num_seqs=64, show_progress=False, **options)


def workers_of(pid: int) -> dict[str, psutil.Process]:
    """The workers among a process's descendants, by title."""
    found = {}
    for child in psutil.Process(pid).children(recursive=True):
        title = title_of(child)
        if title.startswith("fathom::Worker"):
            found[title] = child
    return found


def generate_until_dead(llm: LLM) -> EngineDeadError:
    with pytest.raises(EngineDeadError) as caught:
        llm.generate(PROMPTS, LONG, use_tqdm=False)
    return caught.value


def check_nothing_is_left(llm: LLM, workers: dict[str, psutil.Process]) -> None:
    with pytest.raises(EngineDeadError):
        llm.get_stats()
    assert comes_true(lambda: all(is_gone(worker) for worker in workers.values()))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("kill", ["was killed by SIGKILL"]),
        ("stop", ["is stopped (SIGSTOP"]),
        ("hang", ["hangs: it has done nothing for 1 s in the middle of execute_model", "in _hang"]),
        ("crash", ["was killed by SIGSEGV", "Segmentation fault", "with_fault"]),
        ("raise", ["has failed in execute_model, and the others wait for it: RuntimeError: out of luck", "in _raise"]),
    ],
)
def test_a_worker_s_end_is_the_engine_s_and_is_told(llm: LLM, fault_folder: Path, fault: str, words: list[str]) -> None:
    workers = workers_of(os.getpid())
    victim = workers["fathom::Worker_TP1"]
    if fault in faults.FAULTS:
        (fault_folder / "fathom::Worker_TP1").write_text(fault)
    else:
        victim.send_signal(signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
    message = str(generate_until_dead(llm))
    assert f"worker rank 1 (pid {victim.pid})" in message
    for expected in words:
        assert expected in message
    check_nothing_is_left(llm, workers)


@pytest.mark.parametrize("is_delayed", [False, True], ids=["at once", "by the answering thread"])
def test_a_worker_that_cannot_answer_ends_and_its_error_is_told(
    tiny: Callable[[str], Path], fault_folder: Path, is_delayed: bool
) -> None:
    if is_delayed:
        delayed_device.write_plugin(fault_folder)
    with start(tiny("llama-gqa")) as llm:
        llm.generate(PROMPTS[:1], LONG, use_tqdm=False)
        workers = workers_of(os.getpid())
        (fault_folder / "fathom::Worker_TP1").write_text("raise unspeakable")
        message = str(generate_until_dead(llm))
        assert f"worker rank 1 (pid {workers['fathom::Worker_TP1'].pid}) exited with code 1" in message
        assert "ValueError: no words for it" in message
        assert ("in _answer_later" in message) == is_delayed
        check_nothing_is_left(llm, workers)


def test_a_worker_s_stack_is_told_as_often_as_it_is_asked_for() -> None:
    workers = start_workers(ParallelOptions(tensor_parallel_size=2)).processes
    try:
        asked = workers[1]
        assert comes_true(lambda: catches(asked.process.pid, signal.SIGUSR1))
        for _ in range(2):
            assert comes_true(lambda: asked.ask_for_stack().startswith("Stack (most recent call first):"))
    finally:
        end_workers(os.getpid(), workers)


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, which would end it otherwise."""
    (caught,) = re.findall(r"^SigCgt:\s+(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(caught, 16) >> number - 1 & 1)


def test_a_worker_s_end_is_noticed_while_nothing_is_asked_of_it(
    tiny: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    others = psutil.Process().children()  # of tests before this one
    with start(tiny("llama-gqa")) as llm:
        workers = workers_of(os.getpid())
        (engine,) = set(psutil.Process().children()).difference(others)
        workers["fathom::Worker_TP0"].kill()
        assert comes_true(lambda: is_gone(engine))
        with pytest.raises(EngineDeadError, match=r"worker rank 0 \(pid \d+\) was killed by SIGKILL"):
            llm.get_stats()
        assert comes_true(lambda: all(is_gone(worker) for worker in workers.values()))
    log = capfd.readouterr().err
    assert "the engine process ends: worker rank 0 (pid " in log
    assert "Traceback" not in log


def test_a_step_that_fails_alike_on_every_rank_ends_its_requests_and_not_the_engine(
    llm: LLM, fault_folder: Path
) -> None:
    expected = [o.outputs[0].token_ids for o in llm.generate(PROMPTS[:3], LONG, use_tqdm=False)]
    for rank in range(2):
        (fault_folder / f"fathom::Worker_TP{rank}").write_text("raise")
    failed = llm.generate(PROMPTS[3:5], LONG, use_tqdm=False)
    assert {o.outputs[0].finish_reason for o in failed} == {"error"}
    assert "out of luck" in str(failed[0].outputs[0].error)
    assert [o.outputs[0].token_ids for o in llm.generate(PROMPTS[:3], LONG, use_tqdm=False)] == expected
    assert len(llm.collective_rpc("weight_bytes")) == 2
    with pytest.raises(ValidationError, match="the worker has no method 'no_such_method'"):
        llm.collective_rpc("no_such_method")
    assert [o.outputs[0].token_ids for o in llm.generate(PROMPTS[:3], LONG, use_tqdm=False)] == expected


def test_a_model_that_cannot_be_loaded_is_refused_as_by_one_worker(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    for file in tiny("llama-gqa").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="truncated or corrupt"):
        start(tmp_path)
    assert comes_true(lambda: not workers_of(os.getpid()))


def test_workers_of_an_engine_in_this_process_end_if_the_rest_of_it_cannot_be_made(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    for file in tiny("llama-gqa").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json") as caught:
        start(tmp_path, multiprocess=False)
    assert comes_true(lambda: not workers_of(os.getpid()))
    assert caught.tb is not None  # which keeps the engine, as a notebook does


def test_workers_of_an_engine_in_this_process_end_if_their_cache_cannot_be_made(tiny: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="1,000 bytes of KV cache") as caught:
        start(tiny("llama-gqa"), multiprocess=False, kv_cache_memory_bytes=1000)
    assert comes_true(lambda: not workers_of(os.getpid()))
    assert caught.tb is not None


GENERATE = """
    llm = make_llm(**{options})
    try:
        say("go")
        generate_for_ever(llm)
    except KeyboardInterrupt:
        say("interrupted")
        say(len(generate(llm)[0]))
"""


@pytest.mark.parametrize(
    ("number", "own_process"), [(signal.SIGKILL, True), (signal.SIGINT, False)], ids=["kill -9", "Ctrl-C in-process"]
)
def test_workers_end_with_the_caller(endless: Path, number: int, own_process: bool) -> None:
    before = set(os.listdir("/dev/shm"))
    options = {"tensor_parallel_size": 2, "multiprocess": own_process, "max_num_seqs": 64}
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as tmp:
        code = GENERATE.format(options=options).replace("make_llm(", "LLM(MODEL, num_threads=2, show_progress=False, ")
        script = Script(code, endless, Path(tmp))
        try:
            assert script.line() == "go"
            time.sleep(0.5)
            workers = workers_of(script.process.pid)
            assert len(workers) == 2
            script.process.send_signal(number)
            if number == signal.SIGINT:
                assert [script.line(), script.line()] == ["interrupted", "8"]
                assert script.finish()[0] == 0
            assert comes_true(lambda: all(is_gone(worker) for worker in workers.values()))
            assert comes_true(lambda: not script.left())
        finally:
            script.kill()
        assert not [name for name in set(os.listdir("/dev/shm")) - before if "fathom" in name]
        assert comes_true(lambda: not os.listdir(tmp))
