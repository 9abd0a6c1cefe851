"""Custom logits processors by class and by name, in this process and in one of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fathom import LLM, LogitsProcessor, SamplingParams
from fathom.entrypoints.processor_names import processor_names
from fathom.errors import ConfigError
from tests.entrypoints.conftest import make_llm
from tests.entrypoints.processors import Force

FORCE = SamplingParams(temperature=0.0, max_tokens=3, extra_args={"force": [9, 8, 7]}, ignore_eos=True)


def forced(llm: LLM) -> list[int]:
    return llm.generate([[5]], FORCE, use_tqdm=False)[0].outputs[0].token_ids


@pytest.mark.parametrize(
    "processors",
    [[Force], (Force,), ["tests.entrypoints.processors:Force"], ["tests.entrypoints.processors.Force"]],
    ids=str,
)
def test_by_class_and_by_name(tiny: Callable[[str], Path], processors: Any) -> None:
    with make_llm(tiny("llama-gqa"), logits_processors=processors) as llm:
        assert forced(llm) == [9, 8, 7]


def test_one_that_is_named_twice_runs_once(tiny: Callable[[str], Path]) -> None:
    with make_llm(tiny("llama-gqa"), logits_processors=[Force, "tests.entrypoints.processors:Force"]) as llm:
        assert forced(llm) == [9, 8, 7]


@pytest.mark.parametrize("nothing", [None, [], ()])
def test_none_at_all(tiny: Callable[[str], Path], nothing: Any) -> None:
    with make_llm(tiny("llama-gqa"), logits_processors=nothing) as llm:
        assert forced(llm) != [9, 8, 7]


class Raising(Force):
    def __init__(self, *_: Any) -> None:
        raise RuntimeError("I do not start")


@pytest.mark.parametrize(
    ("processors", "words"),
    [
        ("tests.entrypoints.processors:Force", "logits_processors must be a list, got 'tests.entrypoints"),
        (Force, "logits_processors must be a list, got <class"),
        ([5], "a logits processor must be a class or its name, got 5"),
        ([print], "a logits processor must be a class or its name, got <built-in"),
        (["no.such.module:X"], "'no.such.module:X' could not be imported (ModuleNotFoundError"),
        (["tests.entrypoints.processors:Absent"], "does not exist: tests.entrypoints.processors has no Absent"),
        (["word"], "'word' is no \"module:Class\""),
        ([int], "'builtins:int' is no subclass of fathom"),
        (["os:getcwd"], "'os:getcwd' is no subclass of fathom"),
    ],
    ids=str,
)
def test_what_leads_to_no_processor(tiny: Callable[[str], Path], processors: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_llm(tiny("llama-gqa"), logits_processors=processors)
    assert words in str(caught.value)
    assert caught.value.parameter == "logits_processors"


@pytest.mark.parametrize("own_process", [False, True])
def test_a_class_made_in_a_function_is_refused(own_process: bool) -> None:
    class Local(Force):
        pass

    with pytest.raises(ConfigError, match=r"cannot import .*Local: it was defined inside a function\. Move it"):
        processor_names([Local], own_process=own_process)


def test_a_class_typed_at_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = type("Typed", (LogitsProcessor,), {"__module__": "__main__"})
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.setattr(main, "__file__", "/somewhere/script.py", raising=False)
    assert processor_names([typed], own_process=True) == ("file:/somewhere/script.py:Typed",)
    monkeypatch.delattr(main, "__file__")
    assert processor_names([typed], own_process=False) == ("__main__:Typed",)
    with pytest.raises(ConfigError, match=r"defined at a prompt\. .*multiprocess=False"):
        processor_names([typed], own_process=True)


def test_a_processor_that_cannot_be_constructed(tiny: Callable[[str], Path]) -> None:
    with pytest.raises(RuntimeError, match="I do not start"):
        make_llm(tiny("llama-gqa"), logits_processors=[Raising])


# ---------------------------------------------------------------- scripts

SCRIPT = """
    from fathom import LLM, LogitsProcessor, SamplingParams

    class Only(LogitsProcessor):
        def __init__(self, context, device, is_pin_memory): pass
        def is_argmax_invariant(self): return False
        def update_state(self, batch_update): pass
        def apply(self, logits):
            return helper(logits)

    def helper(logits):
        logits.fill_(-100.0)
        logits[:, 42] = 100.0
        return logits

    def main():
        llm = LLM({model!r}, logits_processors=[Only], max_model_len=64, num_threads=1, multiprocess=True)
        print(llm.generate([[5]], SamplingParams(max_tokens=3), use_tqdm=False)[0].outputs[0].token_ids)
"""
GUARDED = '\n    if __name__ == "__main__":\n        main()\n'
UNGUARDED = "\n    main()\n"


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=folder)


@pytest.fixture
def script(tiny: Callable[[str], Path], tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT.format(model=str(tiny("llama-gqa"))) + GUARDED))
    return tmp_path


@pytest.mark.parametrize("way", [["script.py"], ["-m", "script"]], ids=" ".join)
def test_a_script_s_own_class_reaches_the_engine_s_process(script: Path, way: list[str]) -> None:
    ended = run(*way, folder=script)
    assert ended.stdout == "[42, 42, 42]\n", ended.stderr


def test_an_unguarded_script_does_not_start_engines_without_end(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT.format(model=str(tiny("llama-gqa"))) + UNGUARDED))
    ended = run("script.py", folder=tmp_path)
    assert ended.returncode == 1
    assert 'Put the lines that do so under `if __name__ == "__main__":`' in ended.stderr
