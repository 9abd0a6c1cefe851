"""No step on a GPU waits for it by the way: steps run on torch's meta device, whose tensors have no values.

Whatever would look into a tensor, and so make the host wait, raises there: item(), tolist(), cpu(), a mask as an
index. Copies to the device are watched. The kernels that are chosen are a GPU's, with launches that do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import InterpretedFunction

from fathom.config import EngineConfig
from fathom.frontend.boot import prepare
from fathom.kernels import gpu
from fathom.kv_cache_spec import KVCacheConfig, KVCacheGroup
from fathom.sampling_params import SamplingParams
from fathom.step import NewRequestData, PendingOutput, SchedulerOutput
from fathom.worker.device import CPUDevice
from fathom.worker.worker import Worker

PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.05, logprobs=3, prompt_logprobs=2),
    SamplingParams(temperature=1.0, logit_bias={3: 1.5}, min_tokens=4, stop_token_ids=[7], logprobs=0),
    SamplingParams(temperature=0.5, allowed_token_ids=[1, 2, 3]),
    SamplingParams(temperature=0.5, repetition_penalty=1.3, presence_penalty=0.5, bad_words=["x"]),
]
PARAMS[4].bad_words_token_ids = [[5], [6, 7]]


class MetaDevice(CPUDevice):
    """Runs behind for ever: what the host gets are zeros."""

    def __init__(self) -> None:
        super().__init__(EngineConfig.from_options(device="cpu"))
        self.torch_device = torch.device("meta")
        self.runs_behind, self.replays_steps = True, False

    def copy_to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros(tensor.shape, dtype=tensor.dtype)

    def empty_blocks(self, num_blocks: int, block_bytes: int) -> torch.Tensor:
        return torch.empty(num_blocks, block_bytes, dtype=torch.uint8, device="meta")


@pytest.fixture(autouse=True)
def launches() -> Iterator[set[str]]:
    """The names of the kernels that were launched."""
    names: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "serves_device", lambda device: device.type == "meta")

        def note(kernel: InterpretedFunction, grid: Any) -> Callable[..., None]:
            return lambda *args, **options: names.add(kernel.fn.__name__)

        patch.setattr(InterpretedFunction, "__getitem__", note)
        yield names


class CopiesDoNotWait(TorchDispatchMode):
    """Copies from the host are not waited for, and indices lie where they are used."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; to say otherwise imports torch's compiler."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, torch.Tensor) or not result.is_meta:
            return result
        names = [argument.name for argument in func._schema.arguments]
        given = dict(zip(names, args, strict=False)) | (kwargs or {})
        aten, operation = torch.ops.aten, func.overloadpacket
        if operation in (aten.copy_, aten._to_copy, aten.to):
            source = given["src" if operation is aten.copy_ else "self"]
            assert source.is_meta or given.get("non_blocking"), func
        if operation in (aten.index, aten.index_put_):
            assert all(index is None or index.is_meta for index in given["indices"]), func
        return result


def make_worker(folder: Path, mode: str) -> Worker:
    options = {"dtype": "bfloat16", "weights": "dense", "load_format": "dummy", "device": "cpu", "num_threads": 1}
    options |= {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 128, "kv_cache_dtype": "bfloat16"}
    config = EngineConfig.from_options(model=str(folder), logprobs_mode=mode, show_progress=False, **options)
    worker = Worker(prepare(config).setup, MetaDevice())
    layers = tuple(range(len(worker.get_kv_cache_specs())))
    worker.initialize_from_config(KVCacheConfig(64, 16, len(layers), (KVCacheGroup(layers),), 0), 128)
    return worker


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logits"])
@pytest.mark.parametrize("name", ["llama-gqa", "gemma3"])
def test_no_step_waits_for_the_device(tiny: Callable[[str], Path], launches: set[str], name: str, mode: str) -> None:
    worker = make_worker(tiny(name), mode)
    new = [
        NewRequestData(str(index), np.arange(5 + 9 * index, dtype=np.int32), 5 + 9 * index, 0,
                       ([1 + 8 * index + block for block in range(8)],), params, index, 0)
        for index, params in enumerate(PARAMS)
    ]  # fmt: skip
    chunks = {request.request_id: 3 for request in new}
    rest = {request.request_id: len(request.token_ids) - 3 for request in new[:4]}
    one = dict.fromkeys(rest, 1)
    steps = [
        SchedulerOutput(chunks, 15, new, {}, [], 5, 15),
        SchedulerOutput(rest, sum(rest.values()), [], {}, [], 4, 0),
        SchedulerOutput(one | {"4": 20}, 24, [], {}, [], 1, 20),
        SchedulerOutput(one | {"4": 18}, 22, [], {}, [], 1, 18),
        SchedulerOutput(one | {"4": 1}, 5, [], {}, [], 0, 0),
        SchedulerOutput({"4": 1, "3": 1}, 2, [], {}, ["0", "1", "2"], 0, 0),
        SchedulerOutput({"3": 1}, 1, [], {}, ["4"], 0, 0),
    ]
    with CopiesDoNotWait():
        for step in steps:
            worker.execute_model(step)
            assert isinstance(worker.sample_tokens(), PendingOutput)
    assert {"_attend", "_rotate_and_store", "_best_tokens", "_draw_tokens", "_score", "_apply"} <= launches


def test_the_boot_launches_every_kernel_that_is_not_the_model_s(
    tiny: Callable[[str], Path], launches: set[str]
) -> None:
    """A request that is the first to ask for something does not wait for its kernels to be compiled."""
    make_worker(tiny("llama-gqa"), "raw_logprobs").warm_up()
    assert {
        "_best_tokens",
        "_draw_tokens",
        "_set_floors",
        "_set_goals",
        "_narrow",
        "_score",
        "_compact",
        "_apply",
    } <= launches
