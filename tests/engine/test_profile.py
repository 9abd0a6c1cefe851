"""Profiles: torch's trace of the engine's steps, each under its annotation."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Callable
from pathlib import Path

from fathom import LLM, SamplingParams


def test_a_trace_shows_every_step_by_name(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    with LLM(str(tiny("llama-gqa")), num_threads=1) as llm:
        llm.start_profile(str(tmp_path))
        llm.generate([[5, 6, 7, 8]], SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True), use_tqdm=False)
        (trace,) = llm.stop_profile()
    names = [event.get("name") for event in json.loads(Path(trace).read_text())["traceEvents"]]
    assert names.count("execute_context_1(4)_generation_0(0)") == 1
    assert names.count("execute_context_0(0)_generation_1(1)") == 2
    assert names.count("sample_tokens") == 3


def test_debug_logs_name_every_step(tiny: Callable[[str], Path], caplog) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    debug = caplog.at_level(logging.DEBUG, logger="fathom.core.engine_core")
    with LLM(str(tiny("llama-gqa")), num_threads=1, multiprocess=False) as llm, debug:
        llm.generate([[5, 6, 7, 8]], params, use_tqdm=False)
    steps = [record.getMessage() for record in caplog.records if record.name == "fathom.core.engine_core"]
    assert steps == ["step execute_context_1(4)_generation_0(0)", "step execute_context_0(0)_generation_1(1)"]


def test_a_trace_that_cannot_be_written_does_not_keep_the_model(tiny: Callable[[str], Path], tmp_path, caplog) -> None:
    from fathom.models.decoder import CausalLM

    def models() -> int:
        gc.collect()
        return sum(isinstance(thing, CausalLM) for thing in gc.get_objects())

    before = models()
    (tmp_path / "file").touch()
    llm = LLM(str(tiny("llama-gqa")), num_threads=1, multiprocess=False)
    assert models() == before + 1
    llm.start_profile(str(tmp_path / "file"))
    llm.shutdown()
    assert models() == before
    assert "the profile that was being recorded could not be written: [Errno 17] File exists" in caplog.text
