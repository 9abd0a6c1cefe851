"""Our pages as the package flash-attn reads them: with a stand-in for the package, beside plain torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

import fathom.kernels.attention
from fathom.config import EngineConfig
from fathom.errors import ConfigError
from fathom.frontend.boot import prepare
from fathom.kernels.attention import attention_kernel, paged_attention, ref
from fathom.kv_cache_spec import KVCacheConfig, KVCacheGroup
from fathom.sampling_params import SamplingParams
from fathom.step import ModelRunnerOutput, NewRequestData, SchedulerOutput
from fathom.worker.device import CPUDevice
from fathom.worker.worker import Worker
from tests.kernels.paged_batch import Batch

PACKAGES = Path(__file__).parent / "stand_in_packages"
# Past a page, and past two of them; every request has a query, as all of a step's do.
LONG = [(1, 1), (300, 1), (7, 7), (600, 5), (270, 30)]
LONG_DECODES = [(seq_len, 1) for seq_len, _ in LONG]


def forget() -> None:
    for name in ("flash_attn", "fathom.kernels.attention.flash"):
        sys.modules.pop(name, None)
    if hasattr(fathom.kernels.attention, "flash"):
        del fathom.kernels.attention.flash


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    forget()
    monkeypatch.syspath_prepend(PACKAGES)
    yield
    forget()


class KeysByToken(CPUDevice):
    keys_by_token = True


def make_worker(folder: Path, backend: str) -> Worker:
    config = EngineConfig.from_options(
        model=str(folder), dtype="float16", block_size=256, max_model_len=128, num_threads=1, show_progress=False
    )
    setup = prepare(config).setup
    setup = msgspec.structs.replace(setup, config=setup.config.replace(attention_backend=backend))
    worker = Worker(setup, KeysByToken(setup.config))
    layers = tuple(range(len(worker.get_kv_cache_specs())))
    worker.initialize_from_config(KVCacheConfig(3, 256, len(layers), (KVCacheGroup(layers),), 0), 128)
    return worker


def new(name: str, num_tokens: int, block: int) -> NewRequestData:
    ids, params = np.arange(5, 5 + num_tokens, dtype=np.int32), SamplingParams(temperature=0.0)
    return NewRequestData(name, ids, num_tokens, 0, ([block],), params, 0, 0)


STEPS = [
    SchedulerOutput({"a": 30}, 30, [new("a", 30, 2)], {}, [], 0, 0),
    SchedulerOutput({"a": 1, "b": 20}, 21, [new("b", 40, 1)], {}, [], 0, 0),
    SchedulerOutput({"a": 1, "b": 20}, 21, [], {}, [], 0, 0),
    SchedulerOutput({"a": 1, "b": 1}, 2, [], {}, [], 0, 0),
]


def run(worker: Worker, step: SchedulerOutput) -> dict[str, int]:
    worker.execute_model(step)
    output = worker.sample_tokens()
    assert isinstance(output, ModelRunnerOutput)
    return output.sampled_token_ids


class Flash:
    """What the name stands for."""

    def __init__(self) -> None:
        self.paged_attention = attention_kernel("FLASH_ATTN")


@pytest.mark.parametrize("requests", [LONG, LONG_DECODES], ids=["mixed", "decodes"])
@pytest.mark.parametrize(
    ("heads", "dim", "block_size", "dtype", "options"),
    [
        ((6, 2), 64, 256, "float16", {}),
        ((4, 1), 80, 512, "float16", {"window": 9}),
        ((2, 2), 128, 256, "bfloat16", {"window": 280, "softcap": 5.0}),
    ],
)
def test_it_reads_our_pages(
    installed: None,
    requests: list[tuple[int, int]],
    heads: tuple[int, int],
    dim: int,
    block_size: int,
    dtype: str,
    options: dict,
) -> None:
    batch = Batch(requests, heads, dim, block_size, dtype, keys_by_token=True)
    torch_dtype = getattr(torch, dtype)
    actual = batch.attend(Flash(), torch_dtype, **options)
    assert actual.dtype is torch_dtype
    torch.testing.assert_close(actual, batch.attend(ref, torch_dtype, **options))


def test_a_whole_step(installed: None, tiny: Callable[[str], Path]) -> None:
    """On a device whose keys lie as a GPU's do: a prompt, then a chunk beside a decode, then decodes."""
    steps = []
    for backend in ("CPU_ATTN", "FLASH_ATTN"):
        worker = make_worker(tiny("gemma3"), backend)
        steps.append([run(worker, step) for step in STEPS])
    assert steps[0] == steps[1]


def test_other_names_are_our_own_kernels() -> None:
    assert attention_kernel("TRITON_ATTN") is attention_kernel("CPU_ATTN") is paged_attention


def test_a_package_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was built for another torch."""
    forget()
    (tmp_path / "flash_attn.py").write_text('raise ImportError("undefined symbol: c10")\n')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot be imported: undefined symbol: c10.*attention_backend=TRITON_ATTN"):
        attention_kernel("FLASH_ATTN")
