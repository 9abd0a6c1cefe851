"""No process and no file is left behind, however caller or engine end, and nobody waits for the dead."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.client.processes import Script, comes_true, hold_boots, is_gone, socket_folders, with_plugins_of

Run = Callable[..., Script]

MID_GENERATE = """
    llm = make_llm()
    say("go")
    generate_for_ever(llm)
"""


def start_generating(script: Script) -> psutil.Process:
    """Wait until the script is in the middle of generate; its engine."""
    assert script.line() == "go"
    time.sleep(0.3)
    return script.engine()


# ---------------------------------------------------------------- the engine dies


def test_every_call_after_kill_9_of_the_engine_names_the_signal(run: Run, tmp: Path) -> None:
    script = run(
        """
        llm = make_llm()
        say("go")
        calls = [generate_for_ever, generate_for_ever, LLM.get_stats, LLM.reset_prefix_cache,
                 lambda llm: llm.llm_engine.add_request("x", [5, 6])]
        for call in calls:
            try:
                call(llm)
            except EngineDeadError as error:
                say(error)
        say(llm.llm_engine.has_unfinished_requests())
        say(len(os.listdir(os.environ["TMPDIR"])))
        llm.shutdown()
        say(len(os.listdir(os.environ["TMPDIR"])))
        try:
            llm.generate("x")
        except EngineDeadError as error:
            say(error)
        """
    )
    engine = start_generating(script)
    engine.kill()
    assert {script.line() for _ in range(5)} == {f"the engine process {engine.pid} was killed by SIGKILL"}
    assert [script.line() for _ in range(4)] == ["False", "1", "0", "the engine was shut down"]
    assert script.finish()[0] == 0


def test_after_kill_9_of_the_engine_async_generators_and_calls_raise(run: Run) -> None:
    script = run(
        """
        async def read(llm, name):
            try:
                async for _ in llm.generate([5, 6, 7], LONG, name):
                    pass
            except EngineDeadError as error:
                return error

        async def call(what):
            try:
                await what
            except EngineDeadError as error:
                say(error)

        async def main():
            llm = await AsyncLLM.start(EngineConfig.from_options(model=MODEL, num_threads=1, max_num_seqs=16))
            await llm.check_health()
            say("go")
            tasks = [asyncio.create_task(read(llm, str(i))) for i in range(600)]
            asked = asyncio.create_task(call(llm.get_stats()))
            for line in set(map(str, await asyncio.gather(*tasks))):
                say(line)
            await asked
            say("pending calls are through")
            await call(llm.get_stats())
            await call(llm.abort("x"))
            await call(llm.check_health())
            say(await read(llm, "later"))
            say(llm.errored, llm.output_processor.num_unfinished)
            llm.shutdown()

        asyncio.run(main())
        """
    )
    assert script.line() == "go"
    engine = script.engine()
    time.sleep(0.2)
    engine.kill()
    code, out, err = script.finish()
    lines = out.splitlines()
    position = lines.index("pending calls are through")
    words = f"the engine process {engine.pid} was killed by SIGKILL"
    assert set(lines[:position]) == {words}  # of the readers, and of the call if it had no answer yet
    assert lines[position + 1 :] == [words] * 3 + ["True 0"]
    assert (code, err) == (0, "")


# ---------------------------------------------------------------- the caller dies


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_engine_ends_with_its_caller(run: Run, tmp: Path, number: int) -> None:
    script = run(MID_GENERATE)
    engine = start_generating(script)
    assert len(socket_folders(tmp)) == 1
    script.process.send_signal(number)
    assert comes_true(lambda: is_gone(engine))
    assert comes_true(lambda: not socket_folders(tmp))


def test_the_engine_ends_with_its_caller_though_a_fork_of_it_lives_on(run: Run, tmp: Path) -> None:
    script = run(
        """
        llm = make_llm()
        if os.fork() == 0:
            time.sleep(3600)
            os._exit(0)
        say("go")
        generate_for_ever(llm)
        """
    )
    engine = start_generating(script)
    (fork,) = [child for child in psutil.Process(script.process.pid).children() if child.pid != engine.pid]
    script.process.kill()
    script.process.wait()
    assert comes_true(lambda: is_gone(engine))
    assert not is_gone(fork)
    assert not socket_folders(tmp)


def test_a_fork_neither_ends_the_engine_nor_delays_its_end(run: Run) -> None:
    script = run(
        """
        import multiprocessing
        llm = make_llm()
        for leave in (sys.exit, os._exit):
            pid = os.fork()
            if pid == 0:
                del llm
                leave(0)
            assert os.waitpid(pid, 0)[1] == 0
        say(len(generate(llm)[0]), len(os.listdir(os.environ["TMPDIR"])))
        sleeper = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
        sleeper.start()
        llm.shutdown()
        say(sleeper.is_alive(), len(os.listdir(os.environ["TMPDIR"])))
        sleeper.kill()
        """
    )
    assert [script.line(), script.line()] == ["8 1", "True 0"]
    assert script.finish()[0] == 0


@pytest.mark.parametrize(
    ("ending", "code"), [("", 0), ("raise ValueError('on purpose')", 1), ("sys.exit(3)", 3), ("leave_a_thread()", 0)]
)
def test_a_script_may_end_as_it_likes(run: Run, tmp: Path, ending: str, code: int) -> None:
    script = run(
        f"""
        import threading
        def leave_a_thread():
            params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
            threading.Thread(target=generate, args=(llm, [[5, 6]] * 50, params)).start()
        llm = make_llm()
        say(len(generate(llm)[0]))
        {ending}
        """
    )
    assert script.line() == "8"
    exit_code, _, err = script.finish()
    assert exit_code == code
    assert ("on purpose" in err) == ("on purpose" in ending)
    assert ending.startswith("raise") or err == ""
    assert comes_true(lambda: not script.left())
    assert not socket_folders(tmp)


def test_shutdown_the_with_block_and_del_end_the_engine_at_once(run: Run) -> None:
    script = run(
        """
        import psutil
        def left():
            return len(psutil.Process().children()), len(os.listdir(os.environ["TMPDIR"]))
        llm = make_llm()
        say(left())
        llm.shutdown()
        llm.shutdown()
        say(left())
        with make_llm() as llm:
            generate(llm)
        say(left())
        llm = make_llm()
        generate(llm)
        del llm
        say(left())
        try:
            with make_llm():
                raise KeyError
        except KeyError:
            say(left())
        """
    )
    assert [script.line() for _ in range(5)] == ["(1, 1)"] + ["(0, 0)"] * 4
    assert script.finish()[::2] == (0, "")


# ---------------------------------------------------------------- Ctrl-C


@pytest.mark.parametrize("multiprocess", [True, False])
def test_ctrl_c_during_generate_leaves_a_usable_engine(run: Run, tmp: Path, multiprocess: bool) -> None:
    """Interrupts at many moments: while it checks prompts, sends them, steps or waits for a step, takes in outputs."""
    rounds = 14
    script = run(
        f"""
        llm = make_llm(multiprocess={multiprocess})
        expected = generate(llm)
        for _ in range({rounds}):
            try:
                say("go")
                generate_for_ever(llm)
            except KeyboardInterrupt:
                say("interrupted")
            assert generate(llm) == expected
            stats = llm.get_stats()
            assert stats["num_running"] == stats["num_waiting"] == stats["kv_cache_usage"] == 0
            assert not llm.llm_engine.has_unfinished_requests()
        """
    )
    for index in range(rounds):
        assert script.line() == "go", script.finish()
        time.sleep(0.004 * index**1.5)
        os.killpg(script.process.pid, signal.SIGINT)
        assert script.line() == "interrupted"
    code, _, err = script.finish()
    assert (code, err) == (0, "")
    assert not socket_folders(tmp)


def test_ctrl_c_that_ends_the_script_ends_the_engine(run: Run, tmp: Path) -> None:
    script = run(MID_GENERATE)
    engine = start_generating(script)
    os.killpg(script.process.pid, signal.SIGINT)
    code, _, err = script.finish()
    assert code == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert comes_true(lambda: is_gone(engine))
    assert not socket_folders(tmp)


def test_ctrl_c_during_the_boot_leaves_nothing(run: Run, tmp: Path) -> None:
    hold_boots(tmp)
    script = run('say("go"); make_llm()', PYTHONPATH=with_plugins_of(tmp))
    assert script.line() == "go"
    assert comes_true(lambda: bool(psutil.Process(script.process.pid).children()))
    (engine,) = psutil.Process(script.process.pid).children()
    time.sleep(0.2)
    os.killpg(script.process.pid, signal.SIGINT)
    code, _, err = script.finish()
    assert code == -signal.SIGINT
    assert err.count("Traceback") == 1, "the engine's process has nothing to say about it"
    assert comes_true(lambda: is_gone(engine))
    assert not socket_folders(tmp)


def test_ctrl_c_in_asyncio_ends_everything(run: Run, tmp: Path) -> None:
    script = run(
        """
        async def read(llm, name):
            async for _ in llm.generate([5, 6, 7], LONG, name):
                pass

        async def main():
            llm = await AsyncLLM.start(EngineConfig.from_options(model=MODEL, num_threads=1, max_num_seqs=16))
            say("go")
            await asyncio.gather(*[read(llm, str(i)) for i in range(2000)])

        asyncio.run(main())
        """
    )
    engine = start_generating(script)
    os.killpg(script.process.pid, signal.SIGINT)
    code, _, err = script.finish()
    assert code == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert "was never retrieved" not in err
    assert comes_true(lambda: is_gone(engine))
    assert not socket_folders(tmp)
