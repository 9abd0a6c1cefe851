"""Whose kernels attend: our own, or those of the package flash-attn where it is here and can read our KV cache."""

from __future__ import annotations

from fathom.config import EngineConfig
from fathom.errors import ConfigError
from fathom.hardware import Hardware
from fathom.model_config.values import ModelConfig

FLASH_PAGE = 256
"""flash-attn 2 reads pages of a multiple of so many tokens."""
FLASH_LARGEST_HEAD = 256
FLASH_OLDEST = (2, 6)
"""The first version whose paged attention has windows and soft caps."""


def resolve_attention(
    config: EngineConfig,
    model: ModelConfig,
    device: str,
    dtype: str,
    kv_cache_dtype: str,
    hardware: Hardware,
    reasons: list[str],
) -> str:
    """The name of the backend; "auto" takes flash-attn's where nothing is in its way.

    Raises:
        ConfigError: the backend that was asked for is another device's, or cannot read this cache.
    """
    wanted = config.runtime.attention_backend
    if device == "cpu":
        if wanted not in ("auto", "CPU_ATTN"):
            raise _refusal(wanted, "it is for device=cuda", "Leave attention_backend at auto, or use device=cuda.")
        return "CPU_ATTN"
    if wanted == "CPU_ATTN":
        raise _refusal(wanted, "it is for device=cpu", "Leave attention_backend at auto, or use TRITON_ATTN.")
    if wanted == "TRITON_ATTN":
        return wanted
    obstacle = _obstacle_to_flash(config.cache.block_size, model.head_dim, dtype, kv_cache_dtype, hardware)
    if wanted == "FLASH_ATTN":
        if obstacle is not None:
            why, way_out = obstacle
            raise _refusal(wanted, why, f"{way_out}, or leave attention_backend at auto.")
        return wanted
    if obstacle is not None:
        reasons.append(f"attention_backend=TRITON_ATTN: our own; for FLASH_ATTN, {obstacle[0]}")
        return "TRITON_ATTN"
    reasons.append(f"attention_backend=FLASH_ATTN: flash-attn {hardware.flash_attention} is installed and fits")
    return "FLASH_ATTN"


def _obstacle_to_flash(
    block_size: int, head_dim: int, dtype: str, kv_cache_dtype: str, hardware: Hardware
) -> tuple[str, str] | None:
    """Why flash-attn cannot attend, and what would let it; None if it can."""
    if hardware.flash_attention is None:
        return "the package flash-attn is not installed", "Install flash-attn"
    if not _is_usable(hardware.flash_attention):
        oldest = ".".join(map(str, FLASH_OLDEST))
        return (
            f"flash-attn {hardware.flash_attention} is not of the versions from {oldest} up to 3",
            f"Install flash-attn {oldest} or a later 2.x",
        )
    if block_size % FLASH_PAGE:
        return f"it reads pages of {FLASH_PAGE} tokens and block_size={block_size}", f"Use block_size={FLASH_PAGE}"
    if dtype not in ("float16", "bfloat16"):
        return f"it computes in 16 bits and dtype={dtype}", "Use dtype=bfloat16"
    if kv_cache_dtype != dtype:
        return f"it reads a cache of dtype={dtype} and kv_cache_dtype={kv_cache_dtype}", "Leave kv_cache_dtype at auto"
    if head_dim > FLASH_LARGEST_HEAD or head_dim % 8:
        return (
            f"its heads have a multiple of 8 dimensions up to {FLASH_LARGEST_HEAD}, the model's {head_dim}",
            "Use TRITON_ATTN",
        )
    return None


def _is_usable(version: str) -> bool:
    major, minor = (int(part) if part.isdigit() else 0 for part in (*version.split("."), "0")[:2])
    return FLASH_OLDEST <= (major, minor) < (3, 0)


def _refusal(backend: str, why: str, hint: str) -> ConfigError:
    return ConfigError(
        f"attention_backend={backend}, but {why}.", parameter="attention_backend", value=backend, hint=hint
    )
