"""Norm, rotation and cache write: plain torch against the formulas, and the native kernel at every level against it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fathom.kernels import native
from fathom.kernels.kv_cache import KVCache
from fathom.kernels.norm.ref import rms_norm
from fathom.kernels.rotate_and_store import cpu, ref
from fathom.kv_cache_spec import KVDtype
from tests.kernels.kv_pages import FORMATS, FP8, nan_cache, stored

HEADS, KV_HEADS = 3, 2
ROUNDING = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8, "fp8_e4m3": 2.0**-4, "fp8_e5m2": 2.0**-3}
"""The largest error, relative."""
LEAST = {"fp8_e4m3": 2.0**-10, "fp8_e5m2": 2.0**-17}
"""The same of numbers near 0."""


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


class Step:
    """A step's tokens, at shuffled positions and slots; qkv is a part of wider rows."""

    def __init__(self, num_tokens: int, dim: int, block_size: int = 4, norms: bool = False):
        self.dim, self.block_size = dim, block_size
        row = (HEADS + 2 * KV_HEADS) * dim
        self.qkv = randn(num_tokens, row + 3)[:, 3:]
        angles = randn(2 * num_tokens, dim // 2)
        self.cos, self.sin = angles.cos(), angles.sin()
        generator = torch.Generator().manual_seed(0)
        self.positions = torch.randperm(2 * num_tokens, generator=generator)[:num_tokens]
        self.num_blocks = 2 + 2 * num_tokens // block_size
        self.slots = block_size + torch.randperm((self.num_blocks - 1) * block_size, generator=generator)[:num_tokens]
        self.norms = (randn(dim), randn(1, dim)[0], 0.01) if norms else (None, None, 0.0)

    def run(self, module: Any, dtype: KVDtype = "float32", tokens: slice = slice(None)) -> tuple[torch.Tensor, KVCache]:
        cache = nan_cache(self.num_blocks, self.block_size, KV_HEADS, self.dim, dtype)
        query = module.rotate_and_store(
            self.qkv[tokens], self.positions[tokens], self.cos, self.sin, self.slots[tokens], cache, *self.norms
        )
        return query, cache

    def heads(self) -> tuple[torch.Tensor, ...]:
        return self.qkv.unflatten(1, (-1, self.dim)).split([HEADS, KV_HEADS, KV_HEADS], dim=1)


def turned(x: torch.Tensor, step: Step) -> torch.Tensor:
    """By complex numbers, in float64."""
    half = step.dim // 2
    pairs = torch.complex(x[..., :half].double(), x[..., half:].double())
    turns = torch.complex(step.cos[step.positions].double(), step.sin[step.positions].double())
    pairs = pairs * turns[:, None]
    return torch.cat((pairs.real, pairs.imag), -1)


def hadamard_matrix(dim: int) -> torch.Tensor:
    """[dim, dim] float64 by Sylvester's construction: both halves mixed, and in each half blocks of a power of two."""
    pair = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    half, matrix = dim // 2, torch.ones(1, 1, dtype=torch.float64)
    while half % (2 * len(matrix)) == 0:
        matrix = torch.kron(pair, matrix)
    matrix = torch.kron(pair, torch.kron(torch.eye(half // len(matrix)).double(), matrix))
    return matrix / matrix[0].abs().sum().sqrt()


@pytest.mark.parametrize("dim", [6, 64, 80])
@pytest.mark.parametrize("dtype", FORMATS + FP8)
@pytest.mark.parametrize("norms", [False, True])
def test_ref_equals_the_formulas(norms: bool, dtype: KVDtype, dim: int) -> None:
    step = Step(5, dim, norms=norms)
    query, cache = step.run(ref, dtype)
    q, k, v = step.heads()
    if norms:
        q, k = rms_norm(q, step.norms[0], 0.01), rms_norm(k, step.norms[1], 0.01)
    q, k = turned(q, step), turned(k, step)
    if dtype == "int8":
        q, k = q @ hadamard_matrix(dim), k @ hadamard_matrix(dim)
    torch.testing.assert_close(query.double(), q, atol=2e-6 if dtype == "int8" else 1e-6, rtol=1e-6)
    for actual, exact in zip(stored(cache, step.slots.tolist()), (k, v.double()), strict=True):
        # int8: half a step of the head's largest number / 127.
        if dtype == "int8":
            atol = exact.abs().amax(-1, keepdim=True) / 253
        else:
            atol = ROUNDING[dtype] * exact.abs() + LEAST.get(dtype, 0.0) + 1e-6
        assert ((actual - exact).abs() <= atol).all()


@pytest.mark.parametrize("dim", [2, 6, 64, 80, 96])
def test_in_int8_products_of_queries_and_keys_stay(dim: int) -> None:
    """Keys that int8 holds without an error are read back as what they were, but for a rotation that queries share."""
    step = Step(5, dim)
    step.cos, step.sin = torch.ones_like(step.cos), torch.zeros_like(step.sin)
    matrix = hadamard_matrix(dim).float()
    whole = torch.randint(-126, 127, (5, KV_HEADS, dim), generator=torch.Generator().manual_seed(dim)).float()
    whole[..., 0] = 127
    start = HEADS * dim
    step.qkv[:, start : start + KV_HEADS * dim] = (whole @ matrix).flatten(1)
    for module in (ref, cpu) if native.cpu else (ref,):
        query, cache = step.run(module, "int8")
        keys = stored(cache, step.slots.tolist())[0]
        torch.testing.assert_close(keys, whole, atol=1e-4, rtol=1e-5)
        before = torch.einsum("qhd,ktd->qhkt", step.heads()[0], step.heads()[1])
        torch.testing.assert_close(torch.einsum("qhd,ktd->qhkt", query, keys), before, atol=1e-3, rtol=1e-4)


def test_int8_keeps_small_dimensions_beside_a_large_one() -> None:
    """Without the rotation the small ones would be 0: a step would be 100 / 127."""
    step = Step(5, 64)
    step.cos, step.sin = torch.ones_like(step.cos), torch.zeros_like(step.sin)
    start = HEADS * 64
    keys = step.qkv[:, start : start + 64]
    keys.clamp_(-0.3, 0.3)
    keys[:, 7] = 100.0
    _, cache = step.run(ref, "int8")
    read = stored(cache, step.slots.tolist())[0, :, 0] @ hadamard_matrix(64).float()
    assert (read - keys).abs().max() < 0.3
    assert (read - keys).square().mean() < keys[:, :7].square().mean() / 4


@pytest.mark.parametrize("dtype", FORMATS)
def test_only_its_slots_are_written(dtype: KVDtype) -> None:
    step = Step(5, 6)
    untouched = [slot for slot in range(step.num_blocks * 4) if slot not in step.slots.tolist()]
    for module in (ref, cpu) if native.cpu else (ref,):
        assert stored(step.run(module, dtype)[1], untouched).isnan().all()


@pytest.fixture(params=native.cpu.levels() if native.cpu else [])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    before, threads = native.cpu.level(), native.cpu.num_threads()
    native.cpu.use_level(request.param)
    native.cpu.set_num_threads(2)
    yield request.param
    native.cpu.use_level(before)
    native.cpu.set_num_threads(threads)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize(("dim", "block_size"), [(2, 1), (6, 3), (24, 8), (64, 16), (80, 5), (256, 32)])
def test_native_equals_ref(level: str, dim: int, block_size: int, norms: bool, dtype: KVDtype) -> None:
    step = Step(70, dim, block_size, norms)
    query, cache = step.run(cpu, dtype)
    expected_query, expected = step.run(ref, dtype)
    torch.testing.assert_close(query, expected_query)
    slots = step.slots.tolist()
    # A difference in the last bit before it is rounded may become one in the last bit that is kept.
    rtol = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3, "int8": 1e-5}[dtype]
    atol = 0.05 if dtype == "int8" else 1e-5
    torch.testing.assert_close(stored(cache, slots), stored(expected, slots), rtol=rtol, atol=atol)
    assert torch.equal(stored(cache, slots)[1], stored(expected, slots)[1])  # values are only rounded
    alone, _ = step.run(cpu, dtype, slice(33, 34))
    assert torch.equal(alone, query[33:34])


HARD = [0.0, -0.0, 65503.0, 65519.0, 65520.0, -1e6, 3.3e38, 2.0**-14, 2.0**-24, 2.0**-25, 3 * 2.0**-25, -(2.0**-15) / 3]
HARD += [1.0 + 2.0**-11, 1.0 + 3 * 2.0**-11, 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, 1e-40, 1 / 3]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_of_hard_numbers(level: str, dtype: KVDtype) -> None:
    """To the nearest and then to even, below the normal numbers too; what is too large stays finite."""
    step = Step(2, len(HARD) + 6)
    step.qkv[:, -step.dim :] = torch.tensor([*HARD, *HARD[:6]])
    slots = step.slots.tolist()
    for module in (cpu, ref):
        value = stored(step.run(module, dtype)[1], slots)[1, 0, -1]
        largest = torch.finfo(getattr(torch, dtype)).max
        expected = torch.tensor([*HARD, *HARD[:6]]).clamp(-largest, largest).to(getattr(torch, dtype)).float()
        assert torch.equal(value, expected)


@pytest.mark.parametrize(("dtype", "largest"), [("fp8_e4m3", 448.0), ("fp8_e5m2", 57344.0)])
def test_fp8_keeps_what_is_too_large_finite_and_what_is_no_number_so(dtype: KVDtype, largest: float) -> None:
    step = Step(2, 6)
    step.qkv[:, -6:] = torch.tensor([largest, 1.2 * largest, -1e6, math.inf, math.nan, 1.0625])
    value = stored(step.run(ref, dtype)[1], step.slots.tolist())[1, 0, -1]
    assert value[:4].tolist() == [largest, largest, -largest, largest]
    assert value[4].isnan()
    assert value[5] == 1.0  # a tie in e4m3, to the even one


def test_where_keys_lie_changes_no_number() -> None:
    step = Step(5, 6)
    caches = [nan_cache(step.num_blocks, 4, KV_HEADS, 6, "int8", keys_by_token=by_token) for by_token in (False, True)]
    for cache in caches:
        ref.rotate_and_store(step.qkv, step.positions, step.cos, step.sin, step.slots, cache)
    slots = step.slots.tolist()
    assert torch.equal(stored(caches[0], slots), stored(caches[1], slots))
    assert [cache.keys.stride()[2:] for cache in caches] == [(4, 1), (1, 6)]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_not_hidden(level: str, bad: float, dtype: KVDtype) -> None:
    """The request fails by it, rather than to get a wrong answer. 16 bits hold infinity as their largest number."""
    step = Step(2, 16)
    step.qkv[1, -5] = bad
    for module in (cpu, ref):
        value = stored(step.run(module, dtype)[1], step.slots.tolist())[1]
        finite = value[1, -1].isfinite()
        assert value[0].isfinite().all()
        assert value[1, 0].isfinite().all()
        assert finite.all() == (bad == math.inf and dtype in ("float16", "bfloat16"))


def test_a_head_of_zeros_in_int8(level: str) -> None:
    step = Step(3, 16)
    step.qkv[:] = 0
    for module in (cpu, ref):
        assert not stored(step.run(module, "int8")[1], step.slots.tolist()).any()
