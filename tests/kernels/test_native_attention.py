"""The native paged attention at every level: equal to plain torch, and to itself to the bit however work is cut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fathom.kernels.attention import cpu, ref
from fathom.kv_cache_spec import KVDtype
from tests.kernels.kv_pages import FORMATS, cache_of

native = pytest.importorskip("fathom._cpu")

PROMPT = 700  # past two of the fixed ranges of keys
ROUNDING = 2.0**-8  # of bfloat16, relative
STEP = 2.0**-15  # of integers beside an int8 cache, of the largest of a query's numbers or a row's weights


@pytest.fixture(autouse=True, params=native.levels())
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    before, threads = native.level(), native.num_threads()
    native.use_level(request.param)
    yield request.param
    native.use_level(before)
    native.set_num_threads(threads)


def multiplies_pairs(dtype: KVDtype) -> bool:
    """Whether queries and weights are rounded to bfloat16 at this level."""
    return native.level() == "avx512bf16" and dtype == "bfloat16"


class Cache:
    """One request's keys and values in shuffled blocks, NaN wherever nothing was written."""

    def __init__(
        self,
        length: int,
        block_size: int,
        heads: int,
        kv_heads: int,
        dim: int,
        dtype: KVDtype = "float32",
        seed: int = 0,
    ):
        generator = torch.Generator().manual_seed(0)
        self.scale = dim**-0.5
        self.query = torch.randn(length, heads, dim, generator=generator)
        kv = torch.randn(2, length, kv_heads, dim, generator=generator)
        num_blocks = -(-length // block_size)
        self.blocks = torch.randperm(num_blocks, generator=generator).int() + 1
        self.kv = cache_of(kv, self.blocks, block_size, dtype)

    def attend(self, chunks: list[tuple[int, int]], module=cpu, **options) -> torch.Tensor:
        """The outputs of the queries start .. end - 1 of all chunks, each a request of the one batch."""
        table = self.blocks.expand(len(chunks), -1)
        starts = torch.tensor([0, *(end - start for start, end in chunks)]).cumsum(0).int()
        ends = torch.tensor([end for _, end in chunks], dtype=torch.int32)
        query = torch.cat([self.query[start:end] for start, end in chunks])
        return module.paged_attention(query, self.kv, table, starts, ends, self.scale, **options)


def chunks_of(size: int, length: int = PROMPT) -> list[tuple[int, int]]:
    return [(start, min(start + size, length)) for start in range(0, length, size)]


OPTIONS = [{}, {"window": 90}, {"softcap": 2.0}, {"window": 300, "softcap": 5.0}]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    ("block_size", "heads", "kv_heads", "dim"),
    [(16, 9, 3, 64), (1, 7, 1, 24), (64, 4, 4, 80), (13, 8, 1, 256), (32, 32, 2, 128), (5, 2, 1, 3)],
)
def test_equals_plain_torch(
    block_size: int, heads: int, kv_heads: int, dim: int, options: dict, dtype: KVDtype
) -> None:
    cache = Cache(321, block_size, heads, kv_heads, dim, dtype)
    batch = [(0, 1), (0, 200), (199, 200), (200, 264), (64, 64), (0, 64), (320, 321), (255, 258)]
    native.set_num_threads(2)
    actual, expected = cache.attend(batch, **options), cache.attend(batch, ref, **options)
    if not multiplies_pairs(dtype):
        multiplies_integers = dtype == "int8" and native.level().startswith("avx")
        torch.testing.assert_close(actual, expected, atol=8 * STEP if multiplies_integers else 1e-5, rtol=0)
        return
    # A weight is off by a score's error and its own rounding, and an output by as much of the values around it.
    torch.testing.assert_close(actual, expected, atol=6 * ROUNDING, rtol=0)
    assert (actual - expected).square().mean().sqrt() < ROUNDING / 4


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_chunks_change_no_bit(options: dict, dtype: KVDtype) -> None:
    cache = Cache(PROMPT, 16, 6, 2, 64, dtype)
    whole = cache.attend([(0, PROMPT)], **options)
    for size in (1, 7, 64, 301):
        for num_threads in (1, 3):
            native.set_num_threads(num_threads)
            chunks = chunks_of(size)
            assert torch.equal(cache.attend(chunks, **options), whole)  # all at once
            last = chunks[-1:]
            assert torch.equal(cache.attend(last, **options), whole[last[0][0] :])  # alone


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(3, 3, 128), (14, 2, 64), (4, 1, 256), (2, 2, 7)])
def test_single_rows_get_the_bits_of_a_prompt(heads: int, kv_heads: int, dim: int, dtype: KVDtype) -> None:
    """Few rows read pages where they lie, many are given copies; keys end, and windows start, at odd places too."""
    cache = Cache(301, 16, heads, kv_heads, dim, dtype)
    for options in ({}, {"window": 46}, {"window": 45, "softcap": 4.0}):
        whole = cache.attend([(0, 301)], **options)
        assert torch.equal(cache.attend(chunks_of(1, 301), **options), whole)


def test_where_rounding_changes_nothing_pairs_give_what_float32_gives() -> None:
    """All weights are 1."""
    cache = Cache(301, 16, 2, 1, 64, "bfloat16")
    cache.query, cache.scale = torch.zeros_like(cache.query), 1.0
    expected = cache.attend([(0, 301), (300, 301)], ref)
    torch.testing.assert_close(cache.attend([(0, 301), (300, 301)]), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("dim", [24, 32])
def test_block_size_changes_no_bit(dim: int, dtype: KVDtype) -> None:
    """Some sizes are read where they lie, others are copied first."""
    whole = Cache(PROMPT, 16, 6, 2, dim, dtype).attend([(0, PROMPT)])
    for block_size in (1, 8, 48, 64):
        assert torch.equal(Cache(PROMPT, block_size, 6, 2, dim, dtype).attend(chunks_of(97)), whole)


def test_heads_beside_it_change_no_bit() -> None:
    """Four heads of one KV head, against each alone."""
    cache = Cache(PROMPT, 16, 4, 1, 40)
    together = cache.attend([(0, PROMPT)])
    queries = cache.query
    for head in range(4):
        cache.query = queries[:, head : head + 1]
        assert torch.equal(cache.attend([(0, PROMPT)]), together[:, head : head + 1])


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("block_size", [16, 13])
@pytest.mark.parametrize("first", [650, PROMPT - 1])
def test_blocks_before_the_window_are_not_read(first: int, block_size: int, dtype: KVDtype) -> None:
    cache = Cache(PROMPT, block_size, 6, 2, 64, dtype)
    expected = cache.attend([(first, PROMPT)], window=200)
    cache.blocks[: (first - 200 + 1) // block_size] = 0  # the null block, which is NaN here
    assert torch.equal(cache.attend([(first, PROMPT)], window=200), expected)


def test_large_scores_do_not_overflow() -> None:
    cache = Cache(200, 16, 2, 1, 64)
    cache.query *= 1e4
    torch.testing.assert_close(cache.attend([(0, 200)]), cache.attend([(0, 200)], ref), atol=1e-5, rtol=0)


def test_strided_arguments() -> None:
    """Queries that are part of wider rows, and a table that is."""
    cache = Cache(100, 16, 4, 2, 8)
    expected = cache.attend([(0, 100)])
    wide = torch.randn(100, 96)
    query = wide[:, :32].view(100, 4, 8)
    query.copy_(cache.query)
    table = torch.zeros(1, 50, dtype=torch.int32)
    table[0, :7] = cache.blocks
    starts, lengths = torch.tensor([0, 100]).int(), torch.tensor([100]).int()
    assert torch.equal(cpu.paged_attention(query, cache.kv, table[:, :7], starts, lengths, cache.scale), expected)


def test_an_empty_batch() -> None:
    cache = Cache(10, 16, 2, 1, 8)
    assert cache.attend([(5, 5)]).shape == (0, 2, 8)
