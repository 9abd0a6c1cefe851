"""Models on packed weights: the same numbers as the decoded model's but for the rounding of activations to int8."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
import torch

from fathom import LLM, SamplingParams
from fathom.errors import CheckpointError
from fathom.kernels import native
from fathom.layers.linear import Linear
from fathom.quant.float_weight import FloatWeight
from fathom.quant.packed import PackedWeight
from tests.models.loading import load
from tests.models.paged import PagedRun
from tests.models.tiny_gguf import write_gguf

TOKENS = [(7 * i * i + 3) % 512 for i in range(60)]
OTHERS = [(5 * i + 11) % 512 for i in range(33)]
TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
MIXED = {"v_proj": "Q8_0", "down_proj": "Q5_1", "embed_tokens": "Q5_0"}  # as Q4_K_M files mix them


@pytest.fixture(scope="module")
def mixed(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tiny("llama-biases"), tmp_path_factory.mktemp("mixed") / "model.gguf", "Q4_1", **MIXED)


def logits(path: Path, weights: str) -> torch.Tensor:
    return PagedRun(load(path, weights=weights)).step({"a": TOKENS})["a"]


def matrix(layer: Linear) -> torch.Tensor:
    """A packed layer's whole matrix, decoded."""
    matrices = (part.matrix for part in layer.parts)
    return torch.cat([m.dense() for m in matrices])


def check_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Within what int8 activations cost: 3 % in these models, whose wide random weights make the most of any error."""
    assert 1e-4 < (actual - expected).norm() / expected.norm() < 0.045


@pytest.mark.parametrize("quantization", TYPES)
@pytest.mark.parametrize("name", ["llama-gqa", "llama-mqa-tied", "qwen2", "qwen3-tied", "gemma3"])
def test_logits_are_those_of_the_decoded_model(
    tiny: Callable[[str], Path], tmp_path: Path, name: str, quantization: str
) -> None:
    path = write_gguf(tiny(name), tmp_path / "model.gguf", quantization)
    check_close(logits(path, "packed"), logits(path, "dense"))


def test_formats_may_differ_within_a_layer(mixed: Path) -> None:
    model = load(mixed, weights="packed")
    layer = model.layers[0]
    assert [part.rows for part in layer.attention.qkv.parts] == [slice(0, 96), slice(96, 128)]  # q and k, v
    assert [part.rows for part in layer.mlp.gate_up.parts] == [slice(0, 192)]
    check_close(logits(mixed, "packed"), logits(mixed, "dense"))


def test_part_of_a_layer_may_be_unquantised(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    path = write_gguf(tiny("llama-biases"), tmp_path / "model.gguf", "Q4_1", up_proj="F16", embed_tokens="F16")
    model = load(path, weights="packed")
    assert [type(part.matrix) for part in model.layers[0].mlp.gate_up.parts] == [PackedWeight, FloatWeight]
    check_close(logits(path, "packed"), logits(path, "dense"))


def test_no_weight_is_changed(mixed: Path) -> None:
    packed, dense = load(mixed, weights="packed"), load(mixed, weights="dense")
    checked = 0
    for name, layer in dense.named_modules():
        if isinstance(layer, Linear):
            assert torch.equal(matrix(packed.get_submodule(name)), layer.weight), name
            checked += 1
    assert checked == 2 + 4 * 3
    assert torch.equal(packed.layers[1].attention.qkv.bias, dense.layers[1].attention.qkv.bias)
    assert torch.equal(packed.embedding(torch.tensor(TOKENS)), dense.embedding(torch.tensor(TOKENS)))


def test_projections_in_one_format_are_one_product(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    model = load(write_gguf(tiny("llama-gqa"), tmp_path / "model.gguf", "Q8_0"), weights="packed")
    assert {len(layer.parts) for layer in model.modules() if isinstance(layer, Linear)} == {1}


def test_a_tied_matrix_is_stored_once(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    model = load(write_gguf(tiny("llama-mqa-tied"), tmp_path / "model.gguf", "Q4_0"), weights="packed")
    assert model.lm_head.matrix is model.embedding
    assert not any(parameter.dim() > 1 for parameter in model.parameters() if not parameter.is_meta)


def test_an_unquantised_file_gives_the_decoded_model(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    path = write_gguf(tiny("llama-gqa"), tmp_path / "model.gguf", "F16")
    torch.testing.assert_close(logits(path, "packed"), logits(path, "dense"), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("quantization", TYPES)
def test_with_activations_as_they_are_logits_are_the_decoded_model_s(
    tiny: Callable[[str], Path], tmp_path: Path, quantization: str
) -> None:
    path = write_gguf(tiny("gemma3"), tmp_path / "model.gguf", quantization)
    model = load(path, weights="packed", activations="float32")
    found = PagedRun(model).step({"a": TOKENS})["a"]
    torch.testing.assert_close(found, logits(path, "dense"), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("weights", ["packed", "dense"])
def test_what_does_not_fit_is_refused_alike(
    tiny: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str
) -> None:
    add = gguf.GGUFWriter.add_tensor

    def add_most(writer: gguf.GGUFWriter, name: str, tensor, **kwargs) -> None:
        if name == "blk.2.attn_v.weight":
            tensor = tensor[:16]
        if name != "blk.1.ffn_up.weight":
            add(writer, name, tensor, **kwargs)

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", add_most)
    path = write_gguf(tiny("llama-gqa"), tmp_path / "model.gguf", "Q4_1")
    with pytest.raises(CheckpointError) as caught:
        load(path, weights=weights)
    message = str(caught.value)
    assert "1 missing (blk.1.ffn_up.weight)" in message
    assert "1 of the wrong shape (blk.2.attn_v.weight [16, 64] instead of [32, 64])" in message


@pytest.mark.skipif(native.cpu is None, reason="the plain kernels promise no equal bits")
@pytest.mark.parametrize("sizes", [(1,) * 60, (7, 16, 1, 36), (59, 1)], ids=["one by one", "chunks", "all but one"])
def test_chunks_and_company_do_not_change_a_bit(mixed: Path, sizes: tuple[int, ...]) -> None:
    model = load(mixed, weights="packed")
    whole = PagedRun(model).step({"a": TOKENS})["a"]
    run, start, pieces = PagedRun(model, seed=1), 0, []
    for index, size in enumerate(sizes):
        step = {"a": TOKENS[start : start + size]}
        if index % 2 and index < 8:
            step = {"b": OTHERS[index : index + 3], **step}
        pieces.append(run.step(step)["a"])
        start += size
    assert torch.equal(torch.cat(pieces), whole)


def test_generation_does_not_depend_on_the_batch(mixed: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    prompts = [TOKENS[:n] for n in (1, 9, 30)] + [OTHERS]
    options = {"multiprocess": False, "num_threads": 2, "max_model_len": 128, "weights": "packed"}
    with LLM(str(mixed), max_num_batched_tokens=16, **options) as llm:
        together = [o.outputs[0].token_ids for o in llm.generate(prompts, params, use_tqdm=False)]
        alone = [llm.generate([p], params, use_tqdm=False)[0].outputs[0].token_ids for p in prompts]
    assert together == alone
    assert len({tuple(answer) for answer in together}) == len(prompts)
