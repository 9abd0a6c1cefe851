"""Paged attention against dense attention written out position by position."""

from __future__ import annotations

import pytest
import torch

from fathom.kernels.attention import ref
from fathom.kernels.attention.ref import paged_attention
from fathom.kernels.rotate_and_store.ref import store
from fathom.kv_cache_spec import KVDtype
from tests.kernels.kv_pages import FORMATS, nan_cache, stored

NUM_BLOCKS = 64
# (seq_len, query_len) of each request: decode, whole prompts, chunks after a cached prefix, one idle row.
REQUESTS = [(1, 1), (13, 1), (7, 7), (29, 5), (16, 16), (9, 0), (31, 30)]


def dense(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """query [n, heads, dim]; keys, values [m, kv_heads, dim]; in float64, one score at a time."""
    num_queries, num_heads, _ = query.shape
    group = num_heads // keys.shape[1]
    output = torch.zeros_like(query, dtype=torch.float64)
    for i in range(num_queries):
        position = len(keys) - num_queries + i
        oldest = 0 if window is None else max(0, position - window + 1)
        for head in range(num_heads):
            seen = keys[oldest : position + 1, head // group].double()
            scores = seen @ query[i, head].double() * scale
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            weights = torch.softmax(scores, 0)
            output[i, head] = weights @ values[oldest : position + 1, head // group].double()
    return output


class Scene:
    """Requests whose keys lie in shuffled blocks of a cache that is NaN everywhere else."""

    def __init__(
        self,
        requests: list[tuple[int, int]],
        block_size: int,
        heads: int,
        kv_heads: int,
        dim: int,
        dtype: KVDtype = "float32",
    ):
        generator = torch.Generator().manual_seed(0)
        pool = torch.randperm(NUM_BLOCKS - 1, generator=generator).add(1).tolist()
        self.cache = nan_cache(NUM_BLOCKS, block_size, kv_heads, dim, dtype)
        self.requests, self.queries, self.kv, rows = requests, [], [], []
        for seq_len, query_len in requests:
            blocks = [pool.pop() for _ in range(-(-seq_len // block_size))]
            kv = torch.randn(2, seq_len, kv_heads, dim, generator=generator)
            slots = [blocks[p // block_size] * block_size + p % block_size for p in range(seq_len)]
            store(*kv, torch.tensor(slots), self.cache)
            self.queries.append(torch.randn(query_len, heads, dim, generator=generator))
            self.kv.append(stored(self.cache, slots))
            rows.append(blocks)
        self.rows = rows

    def attend(
        self, order: list[int], window: int | None, softcap: float | None, rows: list[list[int]] | None = None
    ) -> list[torch.Tensor]:
        """The outputs of the requests in `order`, as one batch."""
        rows = rows or self.rows
        width = max(len(row) for row in rows)
        lengths = [len(self.queries[i]) for i in order]
        starts = torch.tensor([0, *lengths]).cumsum(0).int()
        output = paged_attention(
            torch.cat([self.queries[i] for i in order]),
            self.cache,
            torch.tensor([rows[i] + [0] * (width - len(rows[i])) for i in order], dtype=torch.int32),
            starts,
            torch.tensor([self.requests[i][0] for i in order], dtype=torch.int32),
            0.3,
            window,
            softcap,
        )
        return list(output.split(lengths))


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 1, 5, 16, 100])
@pytest.mark.parametrize(
    ("block_size", "heads", "kv_heads", "dim"), [(1, 1, 1, 8), (3, 6, 2, 5), (8, 4, 1, 16), (16, 3, 3, 7)]
)
def test_equals_dense_attention(
    block_size: int, heads: int, kv_heads: int, dim: int, window: int | None, softcap: float | None
) -> None:
    requests = REQUESTS if block_size > 1 else REQUESTS[:4]
    scene = Scene(requests, block_size, heads, kv_heads, dim)
    outputs = scene.attend(list(range(len(requests))), window, softcap)
    for query, (keys, values), output in zip(scene.queries, scene.kv, outputs, strict=True):
        expected = dense(query, keys, values, 0.3, window, softcap)
        torch.testing.assert_close(output.double(), expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 6])
def test_tiles_join_without_a_seam(monkeypatch: pytest.MonkeyPatch, window: int | None, softcap: float | None) -> None:
    scene = Scene(REQUESTS, 4, 4, 2, 8)
    order = list(range(len(REQUESTS)))
    whole = scene.attend(order, window, softcap)
    monkeypatch.setattr(ref, "QUERY_TILE", 7)
    for tiled, expected in zip(scene.attend(order, window, softcap), whole, strict=True):
        torch.testing.assert_close(tiled, expected, atol=2e-6, rtol=0)


def test_a_request_does_not_see_its_neighbours() -> None:
    scene = Scene(REQUESTS, 4, 4, 2, 8)
    together = scene.attend([6, 2, 1, 0, 4, 3], None, None)
    for i, output in zip([6, 2, 1, 0, 4, 3], together, strict=True):
        assert torch.equal(scene.attend([i], None, None)[0], output)


def test_blocks_before_the_window_are_not_read() -> None:
    """Their table entries are the null block, which is NaN here."""
    window, block_size = 6, 4
    scene = Scene(REQUESTS, block_size, 4, 2, 8)
    order = list(range(len(REQUESTS)))
    released = []
    for (seq_len, query_len), row in zip(REQUESTS, scene.rows, strict=True):
        gone = max(0, seq_len - query_len - window + 1) // block_size
        released.append([0] * gone + row[gone:])
    assert released != scene.rows
    full = scene.attend(order, window, None)
    for actual, expected in zip(scene.attend(order, window, None, released), full, strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("dtype", FORMATS)
def test_narrow_caches_are_read_in_float32(dtype: KVDtype) -> None:
    scene = Scene(REQUESTS, 4, 4, 2, 8, dtype)
    outputs = scene.attend([3, 6], None, None)
    for i, output in zip([3, 6], outputs, strict=True):
        expected = dense(scene.queries[i], *scene.kv[i], 0.3, None, None)
        assert output.dtype == torch.float32
        torch.testing.assert_close(output.double(), expected, atol=2e-6, rtol=0)
