"""load_model: build a model on its device and fill it from a checkpoint, in place, after checking every name.

The check comes first and looks at names and shapes only, so that a checkpoint which does not fit is refused
in milliseconds, with all that is wrong with it, and not half-way through a long load.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from fathom.dist.group import ALONE, Groups
from fathom.dist.shares import Cut, uncut
from fathom.errors import CheckpointError
from fathom.kernels import gpu
from fathom.layers.build import BuildContext
from fathom.layers.embedding import VocabMatrix
from fathom.layers.fp8 import FP8
from fathom.layers.linear import Dense, Linear, LinearMethod, MergedLinear, RowParallelLinear
from fathom.layers.packed import Packed
from fathom.models.registry import model_class
from fathom.weights.checkpoint import open_checkpoint
from fathom.weights.dummy import fill_with_random
from fathom.weights.repack import Quantization, Rows, read_matrix

if TYPE_CHECKING:
    from fathom.model_config import ModelConfig
    from fathom.models.decoder import CausalLM
    from fathom.models.weight_names import WeightTarget
    from fathom.weights.checkpoint import Checkpoint
    from fathom.weights.resolve import ResolvedModel

HEAD_NAMES = {"safetensors": "lm_head.weight", "gguf": "output.weight"}

# Tables for the rotary embedding, whose content is part of the ModelConfig.
ROTARY_TABLES = re.compile(r".*\.rotary_emb\.inv_freq|rope_freqs\.weight|blk\.\d+\.attn_rot_embd\.weight")

NAMES_PER_PROBLEM = 10

EMBEDDING_OF_INT4: Quantization = "int8"
"""What the embedding and the head of an int4 model are rounded to: each of their rows matters to few tokens, so an
error there does not average out."""


def load_model(
    model_config: ModelConfig,
    resolved: ResolvedModel,
    *,
    load_format: Literal["auto", "dummy"],
    weights: Literal["packed", "dense"],
    quantization: Quantization | Literal["fp8"] | None = None,
    activations: Literal["int8", "float32"] = "int8",
    dtype: torch.dtype,
    device: torch.device,
    max_model_len: int,
    show_progress: bool,
    groups: Groups = ALONE,
) -> CausalLM:
    """The model, ready to run.

    Args:
        load_format: "dummy" fills the weights with random numbers and opens no file.
        weights: "packed" keeps matrices as the checkpoint stores them, in the kernels' layouts; "dense" as dtype.
        quantization: what matrices that the checkpoint holds as floats are rounded to; fp8 if they are dense, the
            others if they are packed.
        activations: what those that meet quantised weights are rounded to.
        dtype: of activations and dense weights; tensors stored in another are converted one at a time. With packed
            weights on a CPU float32 or bfloat16: all that is not in matrices is float32 there, and bfloat16 is what
            matrices, and the activations that meet them, are rounded to.
        device: where the weights are to lie. Tensors go there one by one, from the mapped file.
        max_model_len: positions that the model must be able to handle.
        groups: the ranks among which the model is cut; what is built, and read, is this rank's share.

    Raises:
        UnsupportedModelError: no class implements the architecture.
        CheckpointError: tensors are missing, unexpected or mis-shaped (all named), or a file is corrupt.
    """
    checkpoint = None if load_format == "dummy" else open_checkpoint(resolved)
    rounded = None
    if weights == "packed" and dtype is torch.bfloat16 and not gpu.serves_device(device):
        rounded, dtype = dtype, torch.float32
    method: LinearMethod = Packed(device, activations, rounded) if weights == "packed" else Dense()
    build = BuildContext(dtype, device, max_model_len, method, groups.tensor, groups.pipeline)
    if quantization == "fp8":
        build, quantization = replace(build, linear_method=FP8(), vocab_method=method), None
    model = model_class(model_config.architecture)(model_config, build)
    if checkpoint is None:
        fill_with_random(model)
    else:
        _load_weights(model, checkpoint, resolved, quantization, show_progress)
    return model.eval()


def _load_weights(
    model: CausalLM,
    checkpoint: Checkpoint,
    resolved: ResolvedModel,
    quantization: Quantization | None,
    show_progress: bool,
) -> None:
    head = HEAD_NAMES[resolved.format]
    targets = model.weight_map(resolved.format)
    problems = _problems(model, targets, checkpoint, head)
    if problems:
        raise CheckpointError(
            f"{resolved.path} does not hold the weights of a {model.config.architecture} of this config: "
            f"{'; '.join(problems)}.",
            parameter="model",
            value=resolved.name,
            hint="The weights and the config must come from the same model.",
        )
    work = "Loading weights" if quantization is None else f"Quantising weights to {quantization}"
    for name, target in tqdm(targets.items(), desc=work, unit="tensor", delay=0.5, disable=not show_progress):
        _fill(model, target, checkpoint, name, quantization)
        checkpoint.release(name)
    _check_tied_head(model, checkpoint, resolved, head)


def _fill(
    model: CausalLM, target: WeightTarget, checkpoint: Checkpoint, name: str, quantization: Quantization | None
) -> None:
    """Read one tensor, or this rank's share of it, to where it belongs, in our order."""
    place = _place(model, target)
    rows: Rows = place.source[0].slice
    if target.row_order is not None:
        rows = target.row_order(place.source[0].whole, model.config)[rows]
    if place.destination.is_meta:  # only declared
        assert isinstance(place.module, Linear)
        method = place.module.method
        assert isinstance(method, Packed)
        assert target.transform is None, "only vectors are transformed"
        if quantization == "int4" and isinstance(place.module, VocabMatrix):
            quantization = EMBEDDING_OF_INT4
        columns = place.source[1].slice
        found = read_matrix(checkpoint, name, rows, columns, quantization, method.rounded)
        method.store(place.module, place.rows, found)
        return
    if len(place.source) > 1:
        matrix = checkpoint.part(name, rows, place.source[1].slice)
        if isinstance(place.module, Linear) and isinstance(place.module.method, FP8):
            place.module.method.store(place.module, place.rows, matrix)
        else:
            place.destination.copy_(matrix)
        return
    tensor = checkpoint.load(name)
    if target.transform is not None:
        tensor = target.transform(tensor, model.config)
    place.destination.copy_(tensor[torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows])
    if isinstance(place.module, RowParallelLinear) and not place.module.adds_bias:
        place.destination.zero_()


class _Place(NamedTuple):
    """The module and the rows of its parameter that a tensor fills, those rows, and what of the tensor fills them.

    source: a cut for each dimension of the tensor.
    """

    module: nn.Module
    rows: slice
    destination: torch.Tensor
    source: tuple[Cut, ...]


def _place(model: CausalLM, target: WeightTarget) -> _Place:
    module_name, _, name = target.parameter.rpartition(".")
    module = model.get_submodule(module_name)
    parameter = module.get_parameter(name)
    rows = slice(0, len(parameter))
    if target.part is not None:
        assert isinstance(module, MergedLinear)
        rows = module.rows[target.part]
    destination = parameter[rows]
    source = tuple(uncut(size) for size in destination.shape)
    if isinstance(module, Linear):
        source = (module.row_cut(target.part), module.column_cut())[: destination.dim()]
    return _Place(module, rows, destination, source)


def _problems(model: CausalLM, targets: dict[str, WeightTarget], checkpoint: Checkpoint, head: str) -> list[str]:
    """What is wrong with the checkpoint's names and shapes, a phrase for each kind; empty if nothing is."""
    found = set(checkpoint.names())
    missing = [name for name in targets if name not in found]
    tied_copy = {head} if model.config.tie_word_embeddings else set()
    unknown = found - targets.keys() - tied_copy - model.names_elsewhere(checkpoint.format)
    unexpected = [name for name in sorted(unknown) if not ROTARY_TABLES.fullmatch(name)]
    misshaped = []
    for name in targets.keys() & found:
        expected = tuple(cut.whole for cut in _place(model, targets[name]).source)
        actual = tuple(checkpoint.shape(name))
        if expected != actual:
            misshaped.append(f"{name} {list(actual)} instead of {list(expected)}")
    kinds = (("missing", missing), ("unexpected", unexpected), ("of the wrong shape", sorted(misshaped)))
    return [_phrase(kind, names) for kind, names in kinds if names]


def _phrase(kind: str, names: list[str]) -> str:
    shown = ", ".join(names[:NAMES_PER_PROBLEM])
    rest = len(names) - NAMES_PER_PROBLEM
    return f"{len(names)} {kind} ({shown}{f' and {rest} more' if rest > 0 else ''})"


def _check_tied_head(model: CausalLM, checkpoint: Checkpoint, resolved: ResolvedModel, head: str) -> None:
    """A tied checkpoint may store its head a second time, but then it must be the same."""
    if not (model.config.tie_word_embeddings and model.stage.is_last) or head not in checkpoint.names():
        return
    embedding = next(
        name for name, target in model.weight_map(resolved.format).items() if target.parameter == "embedding.weight"
    )
    if not torch.equal(checkpoint.load(head), checkpoint.load(embedding)):
        raise CheckpointError(
            f"{resolved.path}: the config ties the head to the embedding, but {head} differs from it.",
            parameter="model",
            value=resolved.name,
            hint="Set tie_word_embeddings to false in config.json if the head has weights of its own.",
        )
