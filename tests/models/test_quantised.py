"""Models from safetensors in the kernels' layouts: as they are stored, and quantised while they are read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fathom import LLM, SamplingParams
from fathom.errors import CheckpointError, ConfigError
from fathom.kernels import native
from fathom.layers.linear import Linear
from fathom.models.decoder import CausalLM
from fathom.quant.float_weight import FloatWeight
from fathom.quant.packed import PackedWeight
from tests.models.loading import load
from tests.models.paged import PagedRun
from tests.models.tiny_gguf import write_gguf

TOKENS = [(7 * i * i + 3) % 512 for i in range(60)]
MODELS = ("llama-biases", "llama-mqa-tied", "qwen3-tied", "gemma3")
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)

needs_native = pytest.mark.skipif(native.cpu is None, reason="the native kernels are not built")


def in_dtype(folder: Path, target: Path, dtype: torch.dtype) -> Path:
    """A copy of a model with its tensors in another dtype."""
    shutil.copytree(folder, target)
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(target / "model.safetensors").items()}
    save_file(tensors, target / "model.safetensors")
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"dtype": str(dtype).removeprefix("torch.")}))
    return target


def logits(model: CausalLM) -> torch.Tensor:
    return PagedRun(model).step({"a": TOKENS})["a"]


def matrices(model: CausalLM) -> dict[str, list[PackedWeight | FloatWeight]]:
    return {
        name: [part.matrix for part in layer.parts]
        for name, layer in model.named_modules()
        if isinstance(layer, Linear)
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_stored_dtypes_lose_nothing(tiny: Callable[[str], Path], tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    folder = in_dtype(tiny(name), tmp_path / "model", dtype)
    packed, dense = load(folder, weights="packed"), load(folder)
    for layer, (matrix, *rest) in matrices(packed).items():
        assert not rest
        assert isinstance(matrix, FloatWeight)
        assert matrix.values.dtype == dtype
        assert torch.equal(matrix.dense(), dense.get_submodule(layer).weight)
    torch.testing.assert_close(logits(packed), logits(dense), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("quantization", "limit"), [("int8", 0.05), ("int4", 0.45), ("fp16", 0.002)])
@pytest.mark.parametrize("name", MODELS)
def test_quantised_logits_stay_close(tiny: Callable[[str], Path], name: str, quantization: str, limit: float) -> None:
    model = load(tiny(name), weights="packed", quantization=quantization, activations="float32")
    expected = logits(load(tiny(name)))
    assert 1e-6 < (logits(model) - expected).norm() / expected.norm() < limit


def test_embedding_and_head_of_int4_are_int8(tiny: Callable[[str], Path]) -> None:
    for name in ("llama-biases", "llama-mqa-tied"):
        bits = {layer: [m.bits for m in found] for layer, found in matrices(load_int4(tiny(name))).items()}
        ends = {layer for layer, found in bits.items() if found == [8]}
        assert ends == ({"embedding"} if "tied" in name else {"embedding", "lm_head.matrix"})
        assert all(found == [4] for layer, found in bits.items() if layer not in ends)


def load_int4(path: Path) -> CausalLM:
    return load(path, weights="packed", quantization="int4")


def test_an_unquantised_gguf_file_is_quantised_like_the_checkpoint(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    path = write_gguf(tiny("llama-gqa"), tmp_path / "model.gguf", "F32", v_proj="Q8_0")
    from_gguf, from_folder = matrices(load_int4(path)), matrices(load_int4(tiny("llama-gqa")))
    assert torch.equal(from_gguf["layers.0.mlp.down"][0].dense(), from_folder["layers.0.mlp.down"][0].dense())
    assert [matrix.bits for matrix in from_gguf["layers.0.attention.qkv"]] == [4, 8]  # v stays as it is


def test_a_tied_head_that_is_stored_twice_is_compared(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny("llama-mqa-tied"), folder)
    tensors = load_file(folder / "model.safetensors")
    head = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors | {"lm_head.weight": head}, folder / "model.safetensors")
    assert torch.equal(logits(load_int4(folder)), logits(load_int4(tiny("llama-mqa-tied"))))
    save_file(tensors | {"lm_head.weight": head + 1}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="ties the head"):
        load_int4(folder)


def test_weight_bytes(tiny: Callable[[str], Path]) -> None:
    folder = tiny("llama-mqa-tied")
    dense = load(folder).weight_bytes()
    assert dense == sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    assert load(folder, weights="packed").weight_bytes() == dense
    half = load(folder, weights="packed", quantization="fp16").weight_bytes()
    assert dense / 2 < half < dense / 2 + 2000  # norms stay float32


@needs_native
@pytest.mark.parametrize("activations", ["int8", "float32"])
@pytest.mark.parametrize("quantization", ["int8", "int4", "fp16", None])
def test_answers_do_not_depend_on_the_batch(
    tiny: Callable[[str], Path], quantization: str | None, activations: str
) -> None:
    prompts = [TOKENS[:n] for n in (1, 9, 30, 60)]
    options = {"quantization": quantization, "activations": activations, "multiprocess": False, "num_threads": 2}
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=1)
    with LLM(str(tiny("llama-biases")), max_num_batched_tokens=16, max_model_len=128, **options) as llm:
        assert llm.llm_engine.config.model.weights == "packed"
        together = [o.outputs[0] for o in llm.generate(prompts, params, use_tqdm=False)]
        alone = [llm.generate([p], params, use_tqdm=False)[0].outputs[0] for p in prompts]
    assert [o.token_ids for o in together] == [o.token_ids for o in alone]
    assert [o.logprobs for o in together] == [o.logprobs for o in alone]  # to the last bit


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_dtype_bfloat16_rounds_matrices_and_what_meets_them(
    tiny: Callable[[str], Path], tmp_path: Path, name: str, stored: torch.dtype
) -> None:
    folder = in_dtype(tiny(name), tmp_path / "model", stored)
    model, exact = load(folder, weights="packed", dtype=torch.bfloat16), load(folder)
    for layer, (matrix, *rest) in matrices(model).items():
        assert not rest
        assert torch.equal(matrix.dense(), exact.get_submodule(layer).weight.bfloat16().float())
    assert all(parameter.dtype is torch.float32 for parameter in model.parameters())
    expected = logits(exact)
    assert 1e-5 < (logits(model) - expected).norm() / expected.norm() < 0.03


def test_dtype_bfloat16_decodes_a_quantised_file(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    path = write_gguf(tiny("llama-gqa"), tmp_path / "model.gguf", "Q4_1")
    model, exact = load(path, weights="packed", dtype=torch.bfloat16), load(path)
    for layer, (matrix, *rest) in matrices(model).items():
        assert not rest
        assert torch.equal(matrix.dense(), exact.get_submodule(layer).weight.bfloat16().float())
    expected = logits(exact)
    assert (logits(model) - expected).norm() / expected.norm() < 0.03


@needs_native
def test_answers_of_bfloat16_do_not_depend_on_the_batch(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    folder = in_dtype(tiny("llama-biases"), tmp_path / "model", torch.bfloat16)
    prompts = [TOKENS[:n] for n in (1, 9, 30, 60)]
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=1)
    found = []
    for num_threads in (1, 2):
        options = {"dtype": "bfloat16", "multiprocess": False, "num_threads": num_threads}
        with LLM(str(folder), max_num_batched_tokens=16, max_model_len=128, **options) as llm:
            config = llm.llm_engine.config
            assert (config.model.weights, config.cache.kv_cache_dtype) == ("packed", "bfloat16")
            found.append([o.outputs[0] for o in llm.generate(prompts, params, use_tqdm=False)])
            found.append([llm.generate([p], params, use_tqdm=False)[0].outputs[0] for p in prompts])
    for outputs in found[1:]:
        assert [o.token_ids for o in outputs] == [o.token_ids for o in found[0]]
        assert [o.logprobs for o in outputs] == [o.logprobs for o in found[0]]  # to the last bit


def test_a_bfloat16_checkpoint_runs_in_a_process_of_its_own(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    folder = in_dtype(tiny("qwen2"), tmp_path / "model", torch.bfloat16)
    answers = []
    for options in ({}, {"dtype": "float32"}):
        with LLM(str(folder), max_model_len=128, show_progress=False, **options) as llm:
            answers.append(llm.generate([TOKENS], GREEDY, use_tqdm=False)[0].outputs[0].token_ids)
    assert answers[0] == answers[1]


def test_what_is_quantised_already_is_refused(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    path = write_gguf(tiny("llama-gqa"), tmp_path / "model.gguf", "Q4_1")
    with pytest.raises(ConfigError, match=r"quantization=int8, but the checkpoint is quantised already \(Q4_1\)"):
        LLM(str(path), quantization="int8", multiprocess=False)
