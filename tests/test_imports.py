"""What `import fathom` costs, and that the names it promises are there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fathom


def modules_after(code: str) -> set[str]:
    """Names of all modules in a fresh interpreter that has run some code."""
    program = f"{code}\nimport sys\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    return set(run.stdout.split())


def packages(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def test_importing_fathom_brings_nothing_else() -> None:
    before, after = modules_after(""), modules_after("import fathom")
    brought = after - before
    assert {name for name in brought if name.startswith("fathom")} == {"fathom"}
    assert packages(brought) - set(sys.stdlib_module_names) == {"fathom"}


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("from fathom import SamplingParams", {"msgspec", "typing_extensions"}),
        ("from fathom import EngineConfig", set()),
        ("from fathom import RequestOutput, Logprob", {"numpy"}),
        ("import fathom.errors, fathom.env, fathom.log", set()),
        ("import fathom.entrypoints.cli.main", set()),
    ],
)
def test_the_leaves_are_light(code: str, allowed: set[str]) -> None:
    third_party = packages(modules_after(code) - modules_after("")) - set(sys.stdlib_module_names)
    assert third_party - allowed - {"fathom"} == set()


@pytest.mark.parametrize("name", ["LLM", "LLMEngine", "AsyncLLM"])
def test_an_engine_s_caller_needs_no_torch(name: str) -> None:
    loaded = packages(modules_after(f"from fathom import {name}"))
    assert not loaded & {"torch", "transformers", "huggingface_hub"}


def test_the_server_s_process_needs_no_torch() -> None:
    loaded = packages(modules_after("import fathom.entrypoints.server.lifecycle"))
    assert not loaded & {"torch", "transformers", "huggingface_hub", "pydantic"}


def test_every_public_name_resolves_once_and_for_all() -> None:
    for name in fathom.__all__:
        value = getattr(fathom, name)
        assert value is not None
        assert getattr(fathom, name) is value
    assert set(fathom.__all__) == set(dir(fathom))


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'fathom' has no attribute 'LMM'"):
        _ = fathom.LMM
