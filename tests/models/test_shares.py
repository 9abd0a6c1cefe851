"""What each rank holds of a model: whole heads, each query head with the KV head that it reads, and cuts that tile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fathom.dist.group import ALONE, Alone, Groups
from fathom.dist.shares import Cut, HeadShare, even_cut, head_share, obstacle_to_heads, sizes_of_heads
from fathom.layers.build import BuildContext
from fathom.layers.linear import Dense, GateUpLinear
from tests.models.loading import load
from tests.models.tiny_gguf import write_gguf


class Rank(Alone):
    """One of several, as long as nothing is said."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def test_heads_are_cut_between_kv_heads_and_copied_where_ranks_are_more() -> None:
    assert [head_share(9, 3, rank, 2) for rank in range(2)] == [
        HeadShare(Cut(9, 0, 3), Cut(3, 0, 1)),
        HeadShare(Cut(9, 3, 9), Cut(3, 1, 3)),
    ]
    assert [head_share(8, 2, rank, 4) for rank in range(4)] == [
        HeadShare(Cut(8, 0, 2), Cut(2, 0, 1)),
        HeadShare(Cut(8, 2, 4), Cut(2, 0, 1)),
        HeadShare(Cut(8, 4, 6), Cut(2, 1, 2)),
        HeadShare(Cut(8, 6, 8), Cut(2, 1, 2)),
    ]
    assert sizes_of_heads(8, 2) == [1, 2, 4, 8]
    assert sizes_of_heads(9, 3) == [1, 2, 3, 9]
    assert obstacle_to_heads(12, 3, 4) == "3 KV heads can be copied to a multiple of 3 ranks only"
    assert obstacle_to_heads(6, 2, 4) == "the 3 query heads of each KV head cannot be dealt out to 2 ranks"


@given(st.integers(1, 12), st.integers(1, 12), st.data())
def test_every_query_head_is_held_once_beside_its_own_kv_head(
    num_kv_heads: int, queries_per_kv: int, data: st.DataObject
) -> None:
    num_heads = num_kv_heads * queries_per_kv
    size = data.draw(st.sampled_from(sizes_of_heads(num_heads, num_kv_heads)))
    shares = [head_share(num_heads, num_kv_heads, rank, size) for rank in range(size)]
    assert [head for share in shares for head in range(share.query.start, share.query.stop)] == list(range(num_heads))
    for share in shares:
        queries_of_each = share.query.size // share.kv.size
        read = [share.kv.start + index // queries_of_each for index in range(share.query.size)]
        assert read == [head // queries_per_kv for head in range(share.query.start, share.query.stop)]


def test_cuts_are_at_whole_units_and_the_last_one_may_be_short() -> None:
    assert [even_cut(100, rank, 3, 32) for rank in range(3)] == [Cut(100, 0, 32), Cut(100, 32, 64), Cut(100, 64, 100)]
    assert [even_cut(5, rank, 2) for rank in range(2)] == [Cut(5, 0, 2), Cut(5, 2, 5)]


@pytest.mark.parametrize(
    ("intermediate_size", "cuts"), [(768, (0, 256, 768)), (256, (0, 128, 256)), (800, (0, 384, 800))]
)
def test_an_mlp_is_cut_where_packed_weights_can_be(intermediate_size: int, cuts: tuple[int, ...]) -> None:
    """At multiples of the columns that one scale may be for, if there are enough of them."""
    for rank in range(2):
        build = BuildContext(torch.float32, torch.device("cpu"), 16, Dense(), tensor=Rank(rank, 2))
        assert GateUpLinear(8, intermediate_size, build).cut == Cut(intermediate_size, cuts[rank], cuts[rank + 1])


@pytest.mark.parametrize(("size", "cuts"), [(2, (0, 32, 96)), (4, (0, 0, 32, 64, 96))])
@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_shares_of_the_weights_are_parts_of_the_whole(
    tiny: Callable[[str], Path], tmp_path: Path, size: int, cuts: tuple[int, ...], form: str
) -> None:
    """Of 4 query and 2 KV heads, 16 wide, and 96 outputs of the MLP. A GGUF file has a head's rows in another order.

    Biases of what is summed up are in the sum once.
    """
    path = write_gguf(tiny("llama-gqa"), tmp_path / "m.gguf", "Q8_0") if form == "gguf" else tiny("llama-biases")
    whole = load(path)
    for rank in range(size):
        share = load(path, groups=Groups(Rank(rank, size), ALONE.pipeline))
        query = range(64 * rank // size, 64 * (rank + 1) // size)
        head = 2 * rank // size
        kv = range(16 * head, 16 * head + 16)
        qkv = [*query, *(64 + row for row in kv), *(96 + row for row in kv)]
        mlp = range(cuts[rank], cuts[rank + 1])
        gate_up = [*mlp, *(96 + row for row in mlp)]
        for part, layer in zip(share.layers, whole.layers, strict=True):
            attention, of = part.attention, layer.attention
            assert torch.equal(attention.qkv.weight, of.qkv.weight[qkv])
            assert torch.equal(attention.output.weight, of.output.weight[:, query])
            assert torch.equal(part.mlp.gate_up.weight, layer.mlp.gate_up.weight[gate_up])
            assert torch.equal(part.mlp.down.weight, layer.mlp.down.weight[:, mlp])
            if form == "safetensors":
                assert torch.equal(attention.qkv.bias, of.qkv.bias[qkv])
                assert torch.equal(part.mlp.gate_up.bias, layer.mlp.gate_up.bias[gate_up])
                for second, bias in ((attention.output, of.output.bias), (part.mlp.down, layer.mlp.down.bias)):
                    assert torch.equal(second.bias, bias if rank == 0 else torch.zeros_like(bias))


def test_every_token_is_embedded_by_one_rank(tiny: Callable[[str], Path]) -> None:
    whole = load(tiny("llama-gqa"))
    shares = [load(tiny("llama-gqa"), groups=Groups(Rank(rank, 3), ALONE.pipeline)) for rank in range(3)]
    every_id = torch.arange(512)
    assert torch.equal(sum(share.embedding(every_id) for share in shares), whole.embedding(every_id))
