"""Whose attention kernels are taken: the package flash-attn's on a GPU where it is installed and fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fathom.config import EngineConfig
from fathom.errors import ConfigError
from fathom.hardware import Hardware, detect_hardware
from fathom.resolve import resolve
from tests.test_config import HARDWARE, MODEL

PACKAGES = Path(__file__).parent / "kernels" / "stand_in_packages"
WITHOUT = replace(HARDWARE, flash_attention=None)
WITH = replace(HARDWARE, flash_attention="2.8.3")
FITTING = {"device": "cuda", "block_size": 256}

OBSTACLES: list[tuple[Hardware, dict[str, Any], int, str, str]] = [
    (WITHOUT, {}, 64, "the package flash-attn is not installed", "Install flash-attn"),
    (replace(WITH, flash_attention="2.5.8"), {}, 64, "flash-attn 2.5.8 is not of the versions from 2.6", "Install"),
    (replace(WITH, flash_attention="3.0.0b1"), {}, 64, "flash-attn 3.0.0b1 is not of the versions from 2.6", "Install"),
    (WITH, {"block_size": 16}, 64, "it reads pages of 256 tokens and block_size=16", "Use block_size=256"),
    (WITH, {"dtype": "float32"}, 64, "it computes in 16 bits and dtype=float32", "Use dtype=bfloat16"),
    (WITH, {"kv_cache_dtype": "int8"}, 64, "dtype=float16 and kv_cache_dtype=int8", "Leave kv_cache_dtype"),
    (WITH, {"kv_cache_dtype": "fp8"}, 64, "dtype=float16 and kv_cache_dtype=fp8_e4m3", "Leave kv_cache_dtype"),
    (WITH, {}, 320, "a multiple of 8 dimensions up to 256, the model's 320", "Use TRITON_ATTN"),
    (WITH, {}, 12, "a multiple of 8 dimensions up to 256, the model's 12", "Use TRITON_ATTN"),
]


def resolved(hardware: Hardware, head_dim: int = 64, **options: Any) -> tuple[str, list[str]]:
    """(backend, what is said of it)"""
    config = EngineConfig.from_options(**(FITTING | options))
    config, reasons = resolve(config, replace(MODEL, head_dim=head_dim), hardware)
    return config.runtime.attention_backend, [reason for reason in reasons if reason.startswith("attention_backend=")]


def test_auto_takes_it_where_it_fits_and_says_so() -> None:
    said = "attention_backend=FLASH_ATTN: flash-attn 2.8.3 is installed and fits"
    assert resolved(WITH) == ("FLASH_ATTN", [said])
    assert resolved(WITH, attention_backend="FLASH_ATTN") == ("FLASH_ATTN", [])
    assert resolved(WITH, attention_backend="TRITON_ATTN") == ("TRITON_ATTN", [])


@pytest.mark.parametrize(("hardware", "options", "head_dim", "why", "way_out"), OBSTACLES)
def test_where_it_does_not_fit(
    hardware: Hardware, options: dict[str, Any], head_dim: int, why: str, way_out: str
) -> None:
    """auto takes our own and says why; asked for by name, it is refused with the way out."""
    backend, (said,) = resolved(hardware, head_dim, **options)
    assert backend == "TRITON_ATTN"
    assert said.startswith("attention_backend=TRITON_ATTN: our own; for FLASH_ATTN, ")
    assert why in said
    with pytest.raises(ConfigError) as caught:
        resolved(hardware, head_dim, attention_backend="FLASH_ATTN", **options)
    assert str(caught.value).startswith("attention_backend=FLASH_ATTN, but ")
    assert f"{why}" in str(caught.value)
    assert way_out in str(caught.value)


def test_a_cpu_s_kernels_are_refused_on_a_gpu() -> None:
    with pytest.raises(ConfigError, match="attention_backend=CPU_ATTN, but it is for device=cpu"):
        resolved(WITH, attention_backend="CPU_ATTN")


def test_the_installed_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PACKAGES)
    assert detect_hardware().flash_attention == "2.8.3"
