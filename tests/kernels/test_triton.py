"""The Triton kernels beside plain torch, run by Triton's interpreter, on caches that are NaN where nothing was written.

That they compile for a GPU is `test_triton_compiles.py`.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from fathom.kernels.activation import ref as activation_ref
from fathom.kernels.activation import triton as activation
from fathom.kernels.attention import ref as attention_ref
from fathom.kernels.attention import triton as attention
from fathom.kernels.norm import ref as norm_ref
from fathom.kernels.norm import triton as norm
from fathom.kernels.rotate_and_store import ref as rotate_ref
from fathom.kernels.rotate_and_store import triton as rotate
from fathom.kv_cache_spec import KVDtype
from tests.kernels.kv_pages import FORMATS, FP8, nan_cache, stored
from tests.kernels.paged_batch import DECODES, MIXED, Batch, randn

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # rows that pad a tile


# The interpreter rounds to bfloat16 towards zero, a GPU to the nearest.
CUT = {"rtol": 2.0**-6, "atol": 1e-5}


@pytest.mark.parametrize("requests", [MIXED, DECODES], ids=["mixed", "decodes"])
@pytest.mark.parametrize(
    ("heads", "dim", "block_size", "dtype", "options"),
    [
        ((6, 2), 64, 16, "float16", {}),
        ((4, 1), 80, 8, "int8", {"window": 9}),
        ((2, 2), 128, 4, "bfloat16", {"window": 50, "softcap": 5.0}),
        ((3, 1), 256, 16, "float32", {"softcap": 2.0}),
        ((6, 2), 64, 16, "fp8_e4m3", {}),
        ((4, 1), 80, 8, "fp8_e5m2", {"window": 9}),
    ],
)
@pytest.mark.parametrize("keys_by_token", [False, True])
def test_attention(
    monkeypatch: pytest.MonkeyPatch,
    requests: list[tuple[int, int]],
    heads: tuple[int, int],
    dim: int,
    block_size: int,
    dtype: KVDtype,
    options: dict,
    keys_by_token: bool,
) -> None:
    monkeypatch.setattr(attention, "MIN_RANGE_KEYS", 32)
    batch = Batch(requests, heads, dim, block_size, dtype, keys_by_token)
    torch.testing.assert_close(batch.attend(attention, **options), batch.attend(attention_ref, **options))


def test_attention_of_a_request_does_not_depend_on_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "MIN_RANGE_KEYS", 32)
    together = Batch(DECODES, (6, 2), 64, 16, "float16")
    whole = together.attend(attention)
    for number in (1, 6):
        together.rows, together.lengths, together.starts = (
            [together.rows[number]],
            together.lengths[number : number + 1],
            torch.tensor([0, 1], dtype=torch.int32),
        )
        together.query = together.query[number : number + 1]
        assert torch.equal(together.attend(attention)[0], whole[number])
        together = Batch(DECODES, (6, 2), 64, 16, "float16")


def test_attention_in_sixteen_bits() -> None:
    """In float16; the interpreter cannot multiply matrices of bfloat16."""
    batch = Batch(MIXED, (6, 2), 64, 16, "float16")
    actual = batch.attend(attention, torch.float16)
    assert actual.dtype is torch.float16
    torch.testing.assert_close(actual, batch.attend(attention_ref, torch.float16), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("shape", "dtype"), [((3, 7), torch.float32), ((2, 2, 96), torch.bfloat16)])
def test_norms(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, residual, weight = randn(*shape).to(dtype), randn(*shape, seed=9).to(dtype), randn(shape[-1])
    close = CUT if dtype is torch.bfloat16 else {}
    torch.testing.assert_close(norm.rms_norm(x, weight, 0.01), norm_ref.rms_norm(x, weight, 0.01), **close)
    normed, total = norm.add_rms_norm(x, residual, weight, 0.01)
    expected, expected_total = norm_ref.add_rms_norm(x, residual, weight, 0.01)
    torch.testing.assert_close(normed, expected, **close)
    torch.testing.assert_close(total, expected_total, **close)


def test_norm_of_rows_that_lie_apart() -> None:
    x, weight = randn(4, 12)[:, 2:7], randn(5)
    torch.testing.assert_close(norm.rms_norm(x, weight, 0.01), norm_ref.rms_norm(x, weight, 0.01))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_tanh_and_mul"])
def test_activations(name: str, dtype: torch.dtype) -> None:
    gate_up = (4 * randn(3, 2 * 1100)).to(dtype)
    close = CUT if dtype is torch.bfloat16 else {}
    torch.testing.assert_close(getattr(activation, name)(gate_up), getattr(activation_ref, name)(gate_up), **close)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("keys_by_token", [False, True])
@pytest.mark.parametrize(("dim", "block_size", "norms"), [(6, 3, True), (64, 16, False), (80, 5, True)])
def test_rotate_and_store(dim: int, block_size: int, norms: bool, keys_by_token: bool, dtype: KVDtype) -> None:
    num_tokens, heads, kv_heads = 9, 3, 2
    qkv = randn(num_tokens, (heads + 2 * kv_heads) * dim + 3)[:, 3:]
    qkv[2, -5], qkv[3, -1] = float("inf"), float("nan")
    angles = randn(2 * num_tokens, dim // 2)
    chance = torch.Generator().manual_seed(0)
    positions = torch.randperm(2 * num_tokens, generator=chance)[:num_tokens]
    slots = block_size + torch.randperm(7 * block_size, generator=chance)[:num_tokens]
    weights = (randn(dim), randn(dim, seed=1), 0.01) if norms else (None, None, 0.0)
    caches = [nan_cache(9, block_size, kv_heads, dim, dtype, keys_by_token) for _ in range(2)]
    queries = [
        module.rotate_and_store(qkv, positions, angles.cos(), angles.sin(), slots, cache, *weights)
        for module, cache in zip((rotate, rotate_ref), caches, strict=True)
    ]
    torch.testing.assert_close(queries[0], queries[1])
    actual, expected = (stored(cache, list(range(9 * block_size))) for cache in caches)
    # A difference in the last bit before it is rounded may become one in the last bit that is kept.
    rounding = CUT["rtol"] if dtype == "bfloat16" else 0.0
    rtol = {"float32": 1e-5, "float16": 1e-3, "bfloat16": rounding, "int8": 1e-5}[dtype]
    atol = 0.05 if dtype == "int8" else 1e-5
    torch.testing.assert_close(actual[0], expected[0], rtol=rtol, atol=atol, equal_nan=True)
    torch.testing.assert_close(actual[1], expected[1], rtol=rounding, atol=0, equal_nan=True)  # values are only rounded


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("keys_by_token", [False, True])
def test_store_in_fp8(keys_by_token: bool, dtype: KVDtype) -> None:
    """Of numbers that fp8 has, and of some that are too large: the interpreter does not round as GPUs do."""
    num_tokens, heads, kv_heads, dim, block_size = 5, 3, 2, 80, 4
    qkv = torch.randint(-8, 9, (num_tokens, (heads + 2 * kv_heads) * dim)).float()
    qkv[1, -4:] = torch.tensor([1e6, -1e6, float("inf"), -float("inf")])
    qkv[2, heads * dim] = 1e6
    nothing = torch.zeros(num_tokens, dim // 2)
    positions, slots = torch.arange(num_tokens), torch.tensor([5, 18, 7, 4, 9])
    caches = [nan_cache(5, block_size, kv_heads, dim, dtype, keys_by_token) for _ in range(2)]
    for module, cache in zip((rotate, rotate_ref), caches, strict=True):
        module.rotate_and_store(qkv, positions, nothing.cos(), nothing, slots, cache)
    actual, expected = (stored(cache, list(range(5 * block_size))) for cache in caches)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    largest = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}[dtype]
    assert actual[1, 18, -1, -4:].tolist() == [largest, -largest, largest, -largest]
