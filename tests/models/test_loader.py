"""What the loader refuses, with which names, and what it lets pass."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fathom.errors import CheckpointError, UnsupportedModelError
from fathom.models.registry import model_class
from tests.models.loading import load
from tests.models.paged import PagedRun

Tensors = dict[str, torch.Tensor]
TOKENS = [5, 9, 300, 41, 7]


@pytest.fixture
def edited(tiny: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """edited(name, change): a copy of a tiny model whose tensors have been through change(tensors)."""

    def edit(name: str, change: Callable[[Tensors], object]) -> Path:
        folder = tmp_path / name
        shutil.copytree(tiny(name), folder)
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors")
        return folder

    return edit


def logits(folder: Path) -> torch.Tensor:
    return PagedRun(load(folder)).step({"a": TOKENS})["a"]


def test_all_problems_are_named_at_once(edited: Callable[..., Path]) -> None:
    def damage(tensors: Tensors) -> None:
        del tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["model.layers.0.self_attn.k_proj.weight"] = torch.zeros(64, 64)
        tensors["model.layers.2.self_attn.q_proj.bias"] = torch.zeros(64)
        tensors["vision.weight"] = torch.zeros(3)

    folder = edited("llama-gqa", damage)
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    message = str(caught.value)
    assert str(folder) in message
    assert "1 missing (model.layers.1.mlp.up_proj.weight)" in message
    assert "2 unexpected (model.layers.2.self_attn.q_proj.bias, vision.weight)" in message
    assert "1 of the wrong shape (model.layers.0.self_attn.k_proj.weight [64, 64] instead of [32, 64])" in message


def test_long_lists_of_names_are_cut(edited: Callable[..., Path]) -> None:
    folder = edited("llama-gqa", lambda tensors: tensors.update({f"extra.{i:02}": torch.zeros(1) for i in range(25)}))
    with pytest.raises(CheckpointError, match=r"25 unexpected \(extra\.00, .*, extra\.09 and 15 more\)"):
        load(folder)


def test_untied_model_needs_its_head(edited: Callable[..., Path]) -> None:
    folder = edited("llama-gqa", lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match=r"1 missing \(lm_head\.weight\)"):
        load(folder)


def test_config_of_another_size_is_refused(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny("llama-gqa"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    with pytest.raises(CheckpointError, match=r"9 unexpected \(model\.layers\.2\."):
        load(folder)


def test_stored_rotary_tables_are_ignored(edited: Callable[..., Path], tiny: Callable[[str], Path]) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    folder = edited("llama-gqa", lambda tensors: tensors.update({name: torch.zeros(8)}))
    assert torch.equal(logits(folder), logits(tiny("llama-gqa")))


def test_tied_model_holds_one_matrix(tiny: Callable[[str], Path]) -> None:
    model = load(tiny("llama-mqa-tied"))
    assert model.lm_head.matrix is model.embedding


def test_tied_model_may_repeat_its_head(edited: Callable[..., Path], tiny: Callable[[str], Path]) -> None:
    def repeat(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    assert torch.equal(logits(edited("llama-mqa-tied", repeat)), logits(tiny("llama-mqa-tied")))


def test_tied_model_with_another_head_is_refused(edited: Callable[..., Path]) -> None:
    def change(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1

    with pytest.raises(CheckpointError, match=r"ties the head .* lm_head\.weight differs"):
        load(edited("llama-mqa-tied", change))


def test_sharded_checkpoint_gives_the_same_model(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    source = tiny("qwen2")
    shutil.copy(source / "config.json", tmp_path)
    names = sorted(load_file(source / "model.safetensors").items())
    shards = {f"model-0000{i + 1}-of-00003.safetensors": dict(names[i::3]) for i in range(3)}
    for file, tensors in shards.items():
        save_file(tensors, tmp_path / file)
    weight_map = {name: file for file, tensors in shards.items() for name in tensors}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert torch.equal(logits(tmp_path), logits(source))


def test_bfloat16_model_stays_close_to_float32(tiny: Callable[[str], Path]) -> None:
    model = load(tiny("gemma3"), dtype=torch.bfloat16)
    assert model.embedding.weight.dtype == torch.bfloat16
    actual = PagedRun(model, kv_dtype="bfloat16").step({"a": TOKENS})["a"]
    assert actual.dtype == torch.float32
    expected = logits(tiny("gemma3"))
    assert torch.corrcoef(torch.stack((actual.flatten(), expected.flatten())))[0, 1] > 0.999


def test_weights_need_no_gradient(tiny: Callable[[str], Path]) -> None:
    assert not any(parameter.requires_grad for parameter in load(tiny("qwen3-tied")).parameters())


def test_dummy_weights_need_only_a_config(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copy(tiny("gemma3") / "config.json", tmp_path)
    run = PagedRun(load(tmp_path, load_format="dummy"))
    assert run.step({"a": TOKENS})["a"].isfinite().all()


def test_unknown_architecture_lists_what_exists() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'MambaForCausalLM'.*Gemma3ForCausalLM, LlamaForCausalLM"):
        model_class("MambaForCausalLM")
