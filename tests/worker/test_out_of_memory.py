"""Out of memory: told apart from other errors, explained at the start, and in a step the end of its requests only."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fathom.config import EngineConfig
from fathom.errors import InsufficientMemoryError
from fathom.worker.device import make_device
from fathom.worker.memory import MemoryUse
from fathom.worker.out_of_memory import explain, is_out_of_memory, nothing_left

DEVICE = make_device(EngineConfig.from_options(device="cpu"))

ALLOCATIONS: dict[str, Callable[[], object]] = {
    "torch": lambda: torch.empty(2**50, dtype=torch.uint8),
    "numpy": lambda: np.empty(2**50, np.uint8),
    "python": lambda: bytearray(2**50),
    "system": lambda: mmap.mmap(-1, 2**50),
}


@pytest.mark.parametrize("allocate", ALLOCATIONS.values(), ids=ALLOCATIONS)
def test_an_allocation_that_fails_is_explained(allocate: Callable[[], object]) -> None:
    with pytest.raises(InsufficientMemoryError) as caught:
        explain(allocate, DEVICE, "trying", "Three ways out: a, b, c.")
    message = str(caught.value)
    assert message.startswith("cpu has run out of memory while trying: ")
    assert message.endswith("Three ways out: a, b, c.")
    assert " GiB were free (" in message


def test_the_tensors_of_what_failed_are_free_when_it_is_told() -> None:
    tensors = []

    def fail() -> None:
        tensor = torch.zeros(1)
        tensors.append(weakref.ref(tensor))
        torch.empty(2**50, dtype=torch.uint8)

    with pytest.raises(InsufficientMemoryError):
        explain(fail, DEVICE, "trying", "")
    assert tensors[0]() is None


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(IndexError):
        explain(lambda: [][0], DEVICE, "trying", "")
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))


def test_a_device_that_the_rest_fills() -> None:
    gib = 2**30
    use = MemoryUse(total=24 * gib, usable=20 * gib, others=gib, weights=16 * gib, activations=3 * gib, graphs=gib)
    assert str(nothing_left(use, DEVICE)).startswith(
        "Nothing is left for the KV cache: of cpu's 24.00 GiB 20.00 may be used, and 21.00 are taken: weights 16.00, "
        "activations 3.00, CUDA graphs 1.00, others 1.00. Three ways out: "
    )


CHILD = """
import json, resource, sys
from pathlib import Path
import psutil
from fathom import LLM, SamplingParams
from fathom.errors import InsufficientMemoryError

def limit(more):
    "How much more memory this process may ask for."
    end = -1 if more is None else psutil.Process().memory_info().vms + more
    resource.setrlimit(resource.RLIMIT_AS, (end, resource.RLIM_INFINITY))

folder, large = Path(sys.argv[1]), Path(sys.argv[2])
options = dict(multiprocess=False, load_format="dummy", max_num_batched_tokens=1024, max_num_seqs=1, num_threads=1,
               show_progress=False, disable_log_stats=False)
found = {}
llm = LLM(folder, **options)
prompts = [{"prompt_token_ids": [5] * 1000}, {"prompt_token_ids": [7] * 4}]
params = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
def run():
    outputs = [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]
    return [(output.finish_reason, len(output.token_ids), output.error) for output in outputs]

limit(100 * 2**20)
found["limited"], found["in use"] = run(), llm.get_stats()["kv_cache_usage"]
limit(None)
found["unlimited"] = run()
limit(100 * 2**20)
try:
    LLM(large, **options)
except InsufficientMemoryError as error:
    found["start"] = str(error)
try:
    LLM(folder, **options | dict(max_num_batched_tokens=4096, max_num_seqs=4096, kv_cache_memory_bytes=2**29))
except InsufficientMemoryError as error:
    found["cache"] = str(error)
limit(None)
print(json.dumps(found))
"""


def write_model(tiny: Path, folder: Path, **changes: int) -> Path:
    """A config of a model that takes much memory, and a tokenizer; weights are made up."""
    folder.mkdir()
    for path in tiny.iterdir():
        if path.suffix == ".json":
            (folder / path.name).write_text(path.read_text())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1024} | changes))
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_memory_that_really_runs_out(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """A process may take 100 MiB more: not for a long prompt, a large model or a large cache."""
    folder = write_model(tiny("llama-gqa"), tmp_path / "wide", intermediate_size=2**15, num_hidden_layers=1)
    large = write_model(tiny("llama-gqa"), tmp_path / "large", hidden_size=2**12, intermediate_size=2**12)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder), str(large)], capture_output=True, text=True, timeout=120, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    (reason, count, message), short = found["limited"]
    assert (reason, count) == ("error", 0)
    assert "cpu has run out of memory while computing a step of 1 request and 1000 tokens: " in message
    assert "Three ways out: a smaller step (lower max_num_batched_tokens" in message
    assert short == ["length", 2, None]
    assert found["in use"] == 0
    assert found["unlimited"] == [["length", 2, None], ["length", 2, None]]
    assert "cpu has run out of memory while loading the weights: " in found["start"]
    assert "Three ways out: smaller weights" in found["start"]
    assert "cpu has run out of memory while allocating a KV cache of 0.50 GiB: " in found["cache"]
