"""Rotary position embedding: the angle of every position, tabulated once, and the rules that stretch it.

Pair i of a head turns by position * frequency[i], frequency[i] = theta ** (-2i / head_dim). Models that were
extended past their training length lower some frequencies, by a rule (RopeConfig.scaling) or by a divisor for
each (RopeConfig.frequency_divisors).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

if TYPE_CHECKING:
    from fathom.layers.build import BuildContext
    from fathom.model_config import RopeConfig


class Rotation(NamedTuple):
    """How the tokens of one step are rotated: positions [num_tokens] int64 of the tables [positions, head_dim / 2]."""

    positions: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor


class RotaryEmbedding(nn.Module):
    """The table of one kind of layer; one instance serves all layers of that kind."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, config: RopeConfig, head_dim: int, build: BuildContext):
        super().__init__()
        # Angles are computed on the CPU, in float32, so that every device uses the same table.
        frequencies, amplitude = scaled_frequencies(config, head_dim)
        angles = torch.arange(build.max_model_len).float()[:, None] * frequencies
        self.register_buffer("cos", (angles.cos() * amplitude).to(build.device), persistent=False)
        self.register_buffer("sin", (angles.sin() * amplitude).to(build.device), persistent=False)

    def forward(self, positions: torch.Tensor) -> Rotation:
        """positions [num_tokens] int64, each below max_model_len."""
        return Rotation(positions, self.cos, self.sin)


def scaled_frequencies(config: RopeConfig, head_dim: int) -> tuple[torch.Tensor, float]:
    """The frequencies [head_dim / 2] under the config's rule, and the factor it puts on cos and sin."""
    frequencies = 1.0 / config.theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    if config.frequency_divisors:
        frequencies = frequencies / torch.tensor(config.frequency_divisors)
    if config.scaling == "linear":
        return frequencies / config.factor, 1.0
    if config.scaling == "llama3":
        return _llama3(frequencies, config), 1.0
    if config.scaling == "yarn":
        return _yarn(frequencies, config, head_dim), _yarn_amplitude(config)
    return frequencies, 1.0


def _llama3(frequencies: torch.Tensor, config: RopeConfig) -> torch.Tensor:
    """Divide slow frequencies by the factor, keep fast ones, and blend in between.

    Slow and fast are counted in turns over the original context: fewer than low_freq_factor, more than
    high_freq_factor.
    """
    turns = config.original_max_position * frequencies / (2 * math.pi)
    blend = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    return _blend(frequencies / config.factor, frequencies, blend.clamp(0, 1))


def _yarn(frequencies: torch.Tensor, config: RopeConfig, head_dim: int) -> torch.Tensor:
    """The same idea with the blend linear in the dimension's index, between beta_slow and beta_fast turns."""

    def index_with_turns(turns: float) -> float:
        ratio = config.original_max_position / (turns * 2 * math.pi)
        return head_dim * math.log(ratio) / (2 * math.log(config.theta))

    low = max(math.floor(index_with_turns(config.beta_fast)), 0)
    high = min(math.ceil(index_with_turns(config.beta_slow)), head_dim - 1)
    span = max(high - low, 0.001)
    slowness = ((torch.arange(head_dim // 2).float() - low) / span).clamp(0, 1)
    return _blend(frequencies / config.factor, frequencies, 1 - slowness)


def _yarn_amplitude(config: RopeConfig) -> float:
    """YaRN's temperature on the attention scores, applied to cos and sin."""
    if config.attention_factor is not None:
        return config.attention_factor
    return 1.0 if config.factor <= 1 else 0.1 * math.log(config.factor) + 1.0


def _blend(slow: torch.Tensor, fast: torch.Tensor, share_of_fast: torch.Tensor) -> torch.Tensor:
    return slow * (1 - share_of_fast) + fast * share_of_fast
