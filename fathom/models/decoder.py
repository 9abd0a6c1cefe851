"""The blocks that most decoder-only families share. An architecture's own file says how it joins them.

    input_ids -> embedding -> layer 0 -> layer 1 -> ... -> norm -> lm_head -> logits

Between layers travel two tensors: what the last block produced, and the residual stream that it is yet to be
added to (none before the first layer). The addition is part of the next norm (`RMSNorm.after_add`), which saves a
pass over memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from fathom.dist.shares import head_share
from fathom.kv_cache_spec import KVDtype, LayerKVSpec
from fathom.layers.activation import gated_activation
from fathom.layers.attention import PagedAttention
from fathom.layers.embedding import LMHead, TokenEmbedding
from fathom.layers.linear import GateUpLinear, Linear, QKVLinear, RowParallelLinear
from fathom.layers.norm import RMSNorm
from fathom.layers.rotary import RotaryEmbedding
from fathom.models.stages import Elsewhere, Stage, layers_of_stage
from fathom.models.weight_names import WeightName, WeightTarget, expand

if TYPE_CHECKING:
    from fathom.layers.build import BuildContext
    from fathom.layers.rotary import Rotation
    from fathom.model_config.values import CheckpointFormat, ModelConfig
    from fathom.worker.forward_batch import ForwardBatch


class DecoderAttention(nn.Module):
    """Project, normalise queries and keys if the family does, rotate, attend, project back."""

    def __init__(
        self,
        config: ModelConfig,
        layer_index: int,
        build: BuildContext,
        *,
        qkv_bias: bool = False,
        output_bias: bool = False,
        qk_norm: bool = False,
    ):
        super().__init__()
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.qkv = QKVLinear(config.hidden_size, heads, kv_heads, head_dim, build, bias=qkv_bias)
        self.query_norm = RMSNorm(head_dim, config.norm_eps, build) if qk_norm else None
        self.key_norm = RMSNorm(head_dim, config.norm_eps, build) if qk_norm else None
        self.paged = PagedAttention(
            layer_index - layers_of_stage(config.num_layers, build.pipeline).start,
            scale=config.attention_scale or head_dim**-0.5,
            window=config.layer_windows[layer_index],
            softcap=config.attention_softcap,
        )
        self.output = RowParallelLinear(
            self.qkv.heads.query.times(head_dim), config.hidden_size, build, bias=output_bias
        )

    def forward(self, hidden: torch.Tensor, rotation: Rotation, batch: ForwardBatch) -> torch.Tensor:
        attended = self.paged(self.qkv(hidden), rotation, batch, self.query_norm, self.key_norm)
        return self.output(attended)


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig, build: BuildContext, *, bias: bool = False):
        super().__init__()
        self.gate_up = GateUpLinear(config.hidden_size, config.intermediate_size, build, bias=bias)
        self.activation = gated_activation(config.activation)
        self.down = RowParallelLinear(self.gate_up.cut, config.hidden_size, build, bias=bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down(self.activation(self.gate_up(hidden)))


class PreNormLayer(nn.Module):
    """x += attention(norm(x)); x += mlp(norm(x))."""

    def __init__(self, config: ModelConfig, build: BuildContext, attention: DecoderAttention, mlp: GatedMLP):
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, config.norm_eps, build)
        self.attention = attention
        self.mlp_norm = RMSNorm(config.hidden_size, config.norm_eps, build)
        self.mlp = mlp

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, rotation: Rotation, batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, residual = self.attention_norm.after_add(hidden, residual)
        hidden = self.attention(hidden, rotation, batch)
        hidden, residual = self.mlp_norm.after_add(hidden, residual)
        return self.mlp(hidden), residual


class CausalLM(nn.Module):
    """A decoder-only language model around the layers that ``make_layer(index)`` returns.

    Embeddings are multiplied by ``embedding_factor``. A layer takes and returns (hidden, residual) as PreNormLayer
    does. An architecture derives from this class and gives its table of weight names and its layers; nothing derives
    from an architecture.
    """

    weight_names: ClassVar[tuple[WeightName, ...]]

    embedding: Any  # TokenEmbedding, RMSNorm and LMHead, where another stage does not have them
    norm: Any
    lm_head: Any

    def __init__(
        self,
        config: ModelConfig,
        build: BuildContext,
        make_layer: Callable[[int], nn.Module],
        *,
        embedding_factor: float = 1.0,
    ):
        super().__init__()
        self.config = config
        self.stage = stage = Stage(build.pipeline, config.hidden_size, build.dtype, build.device)
        own_layers = layers_of_stage(config.num_layers, build.pipeline)
        self.own_layers = range(own_layers.start, own_layers.stop)
        tied = config.tie_word_embeddings
        self.embedding = (
            TokenEmbedding(config.vocab_size, config.hidden_size, build, factor=embedding_factor)
            if stage.is_first or (stage.is_last and tied)
            else Elsewhere()
        )
        self.layers = nn.ModuleList(
            make_layer(index) if index in self.own_layers else Elsewhere() for index in range(config.num_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.norm_eps, build) if stage.is_last else Elsewhere()
        self.lm_head = Elsewhere()
        if stage.is_last:
            self.lm_head = LMHead(
                config.vocab_size,
                config.hidden_size,
                build,
                tied_to=self.embedding if isinstance(self.embedding, TokenEmbedding) and tied else None,
                softcap=config.final_logit_softcap,
            )
        self._build_ropes(build)
        heads = head_share(config.num_heads, config.num_kv_heads, build.tensor.rank, build.tensor.size)
        self._num_kv_heads = heads.kv.size

    def _build_ropes(self, build: BuildContext) -> None:
        """One table for each distinct RopeConfig, and for each layer which one it uses."""
        config = self.config
        of_layer = [config.rope if window is None else config.rope_local for window in config.layer_windows]
        distinct = list(dict.fromkeys(of_layer))
        self.ropes = nn.ModuleList(RotaryEmbedding(rope, config.head_dim, build) for rope in distinct)
        self._own = [(self.layers[index], distinct.index(of_layer[index])) for index in self.own_layers]

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """input_ids, positions [num_tokens] int64 -> hidden states [num_tokens, hidden_size].

        Writes the tokens' keys and values to the batch's caches. A stage that is not the last sends its hidden states
        on, and what it returns is of no use for logits.
        """
        stage = self.stage
        leaving = self.run_layers(input_ids if stage.is_first else stage.receive(len(input_ids)), positions, batch)
        if not stage.is_last:
            stage.send(leaving)
        return leaving

    def run_layers(self, entering: torch.Tensor, positions: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """The same but for what the stages say to each other.

        Args:
            entering: the first stage's are input_ids, those of others what `run_layers` of the stage before returned.
        """
        stage = self.stage
        rotations = [rope(positions) for rope in self.ropes]
        hidden = self.embedding(entering) if stage.is_first else entering
        residual: torch.Tensor | None = None
        for layer, rope in self._own:
            hidden, residual = layer(hidden, residual, rotations[rope], batch)
        if stage.is_last:
            return self.norm.after_add(hidden, residual)[0]
        assert residual is not None, "no stage is without layers"
        return hidden + residual

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [num_rows, hidden_size] -> [num_rows, vocab_size] float32; only on the last stage."""
        return self.lm_head(hidden)

    def kv_specs(self, dtype: KVDtype) -> list[LayerKVSpec]:
        """What each layer of this stage stores, on this rank, in a KV cache of this type.

        In the order of the batch's kv_caches.
        """
        config, num_kv_heads = self.config, self._num_kv_heads
        windows = [config.layer_windows[index] for index in self.own_layers]
        return [LayerKVSpec(num_kv_heads, config.head_dim, dtype, window) for window in windows]

    def weight_bytes(self) -> int:
        """Memory that the weights take; what two layers share counts once."""
        plain = sum(parameter.nbytes for parameter in self.parameters() if not parameter.is_meta)
        return plain + sum(layer.part_bytes() for layer in self.modules() if isinstance(layer, Linear))

    def weight_map(self, file_format: CheckpointFormat) -> dict[str, WeightTarget]:
        """Name of each tensor that a checkpoint of this model must hold -> where it goes; of this stage's tensors.

        A tied head is not among them: it is the embedding's own weight.
        """
        own = dict(self.named_parameters())
        targets = expand(self.weight_names, file_format, self.config.num_layers)
        return {name: target for name, target in targets.items() if target.parameter in own}

    def names_elsewhere(self, file_format: CheckpointFormat) -> set[str]:
        """Names of tensors that other stages' layers may have in a checkpoint."""
        elsewhere = tuple(f"{name}." for name, module in self.named_modules() if isinstance(module, Elsewhere))
        targets = expand(self.weight_names, file_format, self.config.num_layers)
        return {name for name, target in targets.items() if target.parameter.startswith(elsewhere)}
