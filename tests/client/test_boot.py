"""Starting an engine process: what it is, what reaches it, and how a start that fails is told."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import zmq

from fathom import LLM, EngineConfig
from fathom.client.launch import EngineProcess
from fathom.client.sync_mp import SyncMPClient
from fathom.errors import CheckpointError, EngineStartError, FathomError, ModelNotFoundError
from fathom.frontend import boot
from fathom.plugins import load_general_plugins
from fathom.wire.sockets import ENGINE_IDENTITY
from tests.client.processes import (
    PATIENCE_S,
    TITLE,
    Script,
    comes_true,
    hold_boots,
    socket_folders,
    with_plugins_of,
    write_plugins,
)

Run = Callable[..., Script]


def fail_to_start(model: Path | str, error: type[FathomError], **options: object) -> FathomError:
    """Start an LLM that cannot start; its error. Nothing may be left."""
    before = set(psutil.Process().children())
    with pytest.raises(error) as caught:
        LLM(str(model), num_threads=1, multiprocess=True, **options)
    assert set(psutil.Process().children()) <= before
    return caught.value


# ---------------------------------------------------------------- starts that fail


def test_a_corrupt_weights_file_is_told_with_the_childs_own_error(model: Path, tmp: Path) -> None:
    broken = shutil.copytree(model, tmp / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    error = fail_to_start(broken, CheckpointError)
    assert str(weights) in str(error)
    assert not socket_folders(tmp)


def test_an_error_in_the_engine_process_brings_its_traceback(model: Path, tmp: Path) -> None:
    other = shutil.copytree(model, tmp / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
    error = fail_to_start(other, CheckpointError)
    assert "layers.3" in str(error)
    assert "raised in the engine process" in error.__notes__[0]
    assert "load" in error.__notes__[0]


@pytest.mark.parametrize("delay_s", [0.0, 0.15, 0.5])
def test_a_child_killed_during_the_boot_is_told_with_its_signal(
    model: Path, tmp: Path, monkeypatch: pytest.MonkeyPatch, delay_s: float
) -> None:
    def kill_the_child() -> None:
        parent = psutil.Process()
        assert comes_true(lambda: len(parent.children()) > len(before))
        time.sleep(delay_s)
        for child in set(parent.children()) - set(before):
            child.kill()

    hold_boots(tmp)
    monkeypatch.syspath_prepend(tmp)
    before = psutil.Process().children()
    killer = threading.Thread(target=kill_the_child)
    killer.start()
    error = fail_to_start(model, EngineStartError)
    killer.join()
    assert "was killed by SIGKILL before it was ready" in str(error)
    assert not socket_folders(tmp)


def test_a_start_that_takes_too_long_names_the_option(model: Path, tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold_boots(tmp)
    monkeypatch.syspath_prepend(tmp)
    error = fail_to_start(model, EngineStartError, ready_timeout_s=0.05)
    assert error.parameter == "ready_timeout_s"
    assert "not ready within 0.05 s" in str(error)
    assert "FATHOM_ENGINE_READY_TIMEOUT_S" in str(error)
    assert not socket_folders(tmp)


def test_a_process_that_cannot_be_started_leaves_nothing(
    model: Path, tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    this = psutil.Process()
    zmq.Context().destroy()  # what it keeps for good is there before we look
    before = this.num_fds(), this.num_threads()
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    error = fail_to_start(model, EngineStartError)
    assert str(error) == (
        "the engine process could not be started: [Errno 2] No such file or directory: '/no/such/python'."
    )
    assert error.__traceback__ is not None, "which keeps what was made so far"
    assert (this.num_fds(), this.num_threads()) == before
    assert not socket_folders(tmp)


def test_an_unknown_model_is_told_by_the_caller(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    error = fail_to_start("no/such-model", ModelNotFoundError)
    assert "no/such-model" in str(error)
    assert not socket_folders(tmp)


def test_cancelling_the_start_of_an_async_engine_ends_its_process(run: Run, tmp: Path) -> None:
    hold_boots(tmp)
    script = run(
        """
        import psutil
        async def main():
            for wait in (0.0, 0.1, 0.3, 0.6):
                try:
                    await asyncio.wait_for(AsyncLLM.start(EngineConfig.from_options(model=MODEL)), wait)
                except TimeoutError:
                    say(psutil.Process().children())

        asyncio.run(main())
        """,
        PYTHONPATH=with_plugins_of(tmp),
    )
    assert [script.line() for _ in range(4)] == ["[]"] * 4
    assert script.finish()[::2] == (0, "")
    assert not socket_folders(tmp)


# ---------------------------------------------------------------- the process


def test_the_engine_is_a_process_with_a_title_and_the_caller_has_no_torch(run: Run) -> None:
    script = run(
        """
        llm = make_llm()
        generate(llm)
        say(" ".join({"torch", "transformers", "fathom.core.engine_core"} & set(sys.modules)) or "none")
        sys.stdin.read()
        """
    )
    assert script.line() == "none"
    engine = script.engine()
    assert engine.cmdline()[0] == TITLE
    assert engine.ppid() == script.process.pid


def test_the_working_directory_and_odd_paths_do_not_get_in_the_way(run: Run, tmp: Path) -> None:
    """A json.py that lies about must not be taken for the real one, nor a Path in sys.path stop the start."""
    (tmp / "json.py").write_text("raise SystemExit('the wrong json')")
    script = run(
        f"""
        import pathlib
        sys.path = [entry for entry in sys.path if entry]
        sys.path.append(pathlib.Path("x"))
        os.chdir({str(tmp)!r})
        say(len(generate(make_llm())))
        """
    )
    assert script.line() == "1"
    assert script.finish()[::2] == (0, "")


def test_garbage_and_pickles_on_the_input_socket_are_neither_run_nor_fatal(model: Path, tmp: Path) -> None:
    trace = tmp / "it was run"
    chance = random.Random(0)
    pickled = b"cos\nmkdir\n(S'%s'\ntR." % os.fsencode(trace)
    garbage = [[pickled], [b""], [b"", pickled]] + [
        [chance.randbytes(chance.randrange(40)) for _ in range(chance.randint(1, 3))] for _ in range(100)
    ]
    config = EngineConfig.from_options(model=str(model), num_threads=1, max_num_seqs=4)
    engine = EngineProcess(config.parallel)
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        try:
            stranger.linger = 0
            (folder,) = socket_folders(tmp)
            stranger.connect(f"ipc://{folder}/input")
            for frames in garbage:
                stranger.send_multipart(frames)
            client = SyncMPClient(boot.prepare(config).setup, engine, PATIENCE_S)
            client.wait_ready()
            for frames in garbage:
                stranger.send_multipart(frames)
                engine.input.send_multipart([ENGINE_IDENTITY, *frames])
            assert client.call("get_stats")["num_running"] == 0
            assert engine.process.poll() is None
        finally:
            engine.close()
    assert not trace.exists()


def test_an_operation_that_fails_is_an_error_and_no_more(run: Run, tmp: Path) -> None:
    write_plugins(tmp, odd="from fathom.worker.worker import Worker; Worker.odd = lambda self, x: object() if x else x")
    script = run(
        """
        llm = make_llm()
        for arguments in ((0,), (1,), ()):
            try:
                say(llm.collective_rpc("odd", args=arguments))
            except Exception as error:
                say(type(error).__name__, str(error).splitlines()[0])
        try:
            llm.llm_engine.engine_core.call("nothing")
        except Exception as error:
            say(error)
        say(llm.reset_prefix_cache())
        """,
        PYTHONPATH=with_plugins_of(tmp),
    )
    lines = [script.line() for _ in range(5)]
    assert lines[0] == "[0]"
    assert lines[1].endswith("object cannot cross the process boundary")
    assert lines[2].startswith("FathomError TypeError")
    assert lines[3].startswith("unknown control operation 'nothing'; there are ")
    assert lines[4] == "True"


# ---------------------------------------------------------------- what reaches it: plugins and sitecustomize


def test_plugins_and_sitecustomize_reach_both_processes(run: Run, tmp: Path) -> None:
    write_plugins(tmp, good="note('good')", bad="1 / 0", unwanted="note('unwanted')")
    (tmp / "sitecustomize.py").write_text(f"import plugins_of_{tmp.name} as plugins; plugins.note('site')")
    script = run(
        'llm = make_llm(); say("up"); sys.stdin.read()',
        PYTHONPATH=with_plugins_of(tmp),
        FATHOM_PLUGINS="good, bad",
    )
    assert script.line() == "up"
    caller, engine = script.process.pid, script.engine().pid
    log = (tmp / "log").read_text().splitlines()
    assert sorted(log) == sorted(f"{name} {pid}" for name in ("good", "site") for pid in (caller, engine))
    script.process.send_signal(signal.SIGTERM)
    assert "plugin bad" in script.finish()[2]


@pytest.mark.parametrize(("wanted", "ran"), [(None, ["one", "two"]), ("two", ["two"]), ("", []), (" one ,x", ["one"])])
def test_fathom_plugins_says_which_run(
    wanted: str | None, ran: list[str], tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plugins(tmp, one="note('one')", two="note('two')")
    monkeypatch.syspath_prepend(tmp)
    monkeypatch.delenv("FATHOM_PLUGINS", raising=False)
    if wanted is not None:
        monkeypatch.setenv("FATHOM_PLUGINS", wanted)
    load_general_plugins()
    log = tmp / "log"
    names = [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []
    assert sorted(names) == ran
