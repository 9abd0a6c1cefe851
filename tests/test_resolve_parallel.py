"""How many workers there may be: refused with the numbers, before anything is started."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fathom import LLM
from fathom.config import EngineConfig
from fathom.errors import ConfigError
from fathom.resolve import resolve
from tests.test_config import HARDWARE, MODEL

MANY_CORES = replace(HARDWARE, cores=64)


@pytest.mark.parametrize(
    ("options", "backend"),
    [
        ({}, "uni"),
        ({"distributed_executor_backend": "mp"}, "mp"),
        ({"tensor_parallel_size": 2}, "mp"),
        ({"pipeline_parallel_size": 2, "num_threads": 2}, "mp"),
        ({"distributed_executor_backend": "ray"}, "ray"),
    ],
)
def test_the_executor_follows_the_number_of_workers(options: dict[str, Any], backend: str) -> None:
    config, _ = resolve(EngineConfig.from_options(**options), MODEL, HARDWARE)
    assert config.parallel.distributed_executor_backend == backend


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"tensor_parallel_size": 3},
            r"3 does not fit a model of 4 heads and 2 KV heads: 2 KV heads can be copied to a multiple of 2 ranks "
            r"only. Sizes that fit: 1, 2, 4\.",
        ),
        ({"tensor_parallel_size": 8}, r"the 2 query heads of each KV head cannot be dealt out to 4 ranks"),
        ({"tensor_parallel_size": 4}, r"intermediate_size of 96 makes only 3 groups of 32. Use at most 3"),
        ({"pipeline_parallel_size": 3}, r"pipeline_parallel_size=3, but the model has 2 layers. Use at most 2"),
        ({"tensor_parallel_size": 2, "num_threads": 1}, r"2 workers, more than the 1 threads of num_threads"),
        ({"tensor_parallel_size": 2, "distributed_executor_backend": "uni"}, r"uni runs one worker, not 2"),
        ({"tensor_parallel_size": 0}, r"tensor_parallel_size must be at least 1, got 0"),
        (
            {"distributed_executor_backend": "slurm"},
            r"distributed_executor_backend must be 'uni' or 'mp' or 'ray' or None",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_numbers(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        resolve(EngineConfig.from_options(**options), MODEL, MANY_CORES)


def test_more_workers_than_cores_are_refused() -> None:
    config = EngineConfig.from_options(tensor_parallel_size=2, pipeline_parallel_size=2)
    with pytest.raises(ConfigError, match=r"2 x pipeline_parallel_size=2 makes 4 workers, more than the 3 cores"):
        resolve(config, MODEL, HARDWARE)


def test_ray_s_workers_need_no_cores_of_this_machine() -> None:
    options = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "distributed_executor_backend": "ray"}
    config, _ = resolve(EngineConfig.from_options(**options, num_threads=8), MODEL, HARDWARE)
    assert config.parallel.num_workers == 4
    with pytest.raises(ConfigError, match=r"makes 4 workers, more than the 2 threads of num_threads"):
        resolve(EngineConfig.from_options(**options, num_threads=2), MODEL, HARDWARE)


def test_heads_that_are_dealt_out_unevenly_are_said() -> None:
    model = replace(MODEL, num_heads=9, num_kv_heads=3)
    _, reasons = resolve(EngineConfig.from_options(tensor_parallel_size=2), model, HARDWARE)
    assert "heads dealt out unevenly, [3, 6]: 3 KV heads stay whole" in reasons


def test_a_refusal_reaches_the_caller_and_ends_what_was_begun(tiny) -> None:
    with pytest.raises(ConfigError, match="tensor_parallel_size=3 does not fit"):
        LLM(str(tiny("llama-gqa")), tensor_parallel_size=3)
