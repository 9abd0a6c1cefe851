"""Whole models on the Triton kernels, in Triton's interpreter: the tokens are those of plain torch.

What a GPU would run, on the CPU: `on` makes every choice of a kernel fall on one implementation. Beside the kernels
this is the way between them: shapes, strides, dtypes, and what assumes that tensors lie on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch

pytest.importorskip("triton")

from fathom import LLM, SamplingParams
from fathom.kernels import gpu, native
from fathom.quant.packed import PackedWeight
from tests.models.loading import load
from tests.models.paged import PagedRun
from tests.models.tiny_gguf import write_gguf

pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|divide by zero) encountered:RuntimeWarning")

# Few tokens, since the interpreter takes milliseconds for a program: a prompt in two chunks, one beside decodes.
PROMPTS = [[(7 * i * i + 3) % 512 for i in range(length)] for length in (9, 2)]
GREEDY = SamplingParams(temperature=0.0, repetition_penalty=1.3, max_tokens=3, ignore_eos=True, logprobs=2)
DRAWN = SamplingParams(temperature=0.8, top_p=0.9, top_k=40, min_p=0.01, seed=5, max_tokens=2, ignore_eos=True)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Literal["ref", "triton"]], None]:
    def choose(name: Literal["ref", "triton"]) -> None:
        monkeypatch.setattr(native, "serves_device", lambda device: False)
        monkeypatch.setattr(gpu, "serves_device", lambda device: name == "triton")

    return choose


def tokens(path: Path, **options: object) -> list[tuple[int, ...]]:
    with LLM(path, multiprocess=False, enforce_eager=True, max_num_batched_tokens=6, **options) as llm:
        outputs = llm.generate(PROMPTS, [GREEDY, DRAWN], use_tqdm=False)
    return [tuple(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.parametrize("name", ["llama-gqa", "gemma3-softcaps"])
def test_tokens_are_those_of_plain_torch(on: Callable[[str], None], tiny: Callable[[str], Path], name: str) -> None:
    """Chunks, decodes and mixed steps; penalised with logprobs, and drawn."""
    on("ref")
    expected = tokens(tiny(name), dtype="float32")
    on("triton")
    assert tokens(tiny(name), dtype="float32") == expected


def test_logits_in_sixteen_bits_are_those_of_plain_torch(
    on: Callable[[str], None], tiny: Callable[[str], Path]
) -> None:
    """In float16; the interpreter cannot multiply matrices of bfloat16."""
    found = {}
    for implementation in ("ref", "triton"):
        on(implementation)
        run = PagedRun(load(tiny("qwen3-tied"), dtype=torch.float16), kv_dtype="float16")
        run.step({"a": PROMPTS[0]})
        found[implementation] = torch.cat(list(run.step({"a": [5], "b": PROMPTS[1]}).values()))
    assert found["triton"].isfinite().all()
    assert (found["triton"] - found["ref"]).norm() < 0.02 * found["ref"].norm()


def test_packed_weights_of_several_formats(
    on: Callable[[str], None], tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    """Products and embedding rows are decoded, what the file has as floats is a plain matrix; as with plain torch."""
    mixed = {"v_proj": "Q8_0", "down_proj": "Q5_1", "embed_tokens": "Q5_0", "up_proj": "F16"}
    path = write_gguf(tiny("llama-biases"), tmp_path / "model.gguf", "Q4_1", **mixed)
    on("ref")
    expected = PagedRun(load(path, weights="packed", activations="float32")).step({"a": PROMPTS[0]})["a"]
    on("triton")
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float16, 0.02)):
        model = load(path, weights="packed", dtype=dtype)
        kinds = [type(part.matrix) for part in model.layers[0].mlp.gate_up.parts]
        assert kinds == [PackedWeight, torch.Tensor]
        found = PagedRun(model).step({"a": PROMPTS[0][:3]})["a"]
        assert (found - expected[:3]).norm() < tolerance * expected[:3].norm()
