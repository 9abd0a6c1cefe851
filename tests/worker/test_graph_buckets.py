"""GraphBuckets: which graph serves a step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fathom.worker.graph_buckets import Bucket, GraphBuckets
from fathom.worker.memory import MemoryUse, measure_graphs

MODES = st.sampled_from(["FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "PIECEWISE"])
SIZES = st.lists(st.integers(1, 600), min_size=1, max_size=12, unique=True).map(lambda sizes: tuple(sorted(sizes)))


@given(MODES, SIZES, st.integers(1, 300), st.data())
def test_a_step_gets_the_least_graph_that_holds_it(
    mode: str, sizes: tuple[int, ...], max_num_seqs: int, data: st.DataObject
) -> None:
    buckets = GraphBuckets.of(mode, sizes, max_num_seqs)
    num_reqs = data.draw(st.integers(1, max_num_seqs))
    num_tokens = data.draw(st.one_of(st.just(num_reqs), st.integers(num_reqs, 700)))
    full = [min(size, max_num_seqs) for size in sizes if min(size, max_num_seqs) >= num_reqs]
    piecewise = [size for size in sizes if size >= num_tokens]
    expected = None
    if mode != "FULL_DECODE_ONLY" and piecewise:
        expected = Bucket("piecewise", min(piecewise))
    if mode != "PIECEWISE" and num_tokens == num_reqs and full:
        expected = Bucket("full", min(full))
    assert buckets.choose(num_reqs, num_tokens) == expected


def test_steps_as_large_as_a_graph_and_one_larger() -> None:
    buckets = GraphBuckets((1, 8, 16), (8, 32))
    assert [buckets.choose(size, size) for size in (1, 2, 8, 9, 16, 17)] == [
        ("full", 1), ("full", 8), ("full", 8), ("full", 16), ("full", 16), ("piecewise", 32)
    ]  # fmt: skip
    assert [buckets.choose(1, size) for size in (2, 8, 9, 32, 33)] == [
        ("piecewise", 8), ("piecewise", 8), ("piecewise", 32), ("piecewise", 32), None
    ]  # fmt: skip


@given(SIZES, st.integers(1, 300))
def test_a_full_graph_is_never_larger_than_the_batch_and_covers_it_if_a_size_does(
    sizes: tuple[int, ...], max_num_seqs: int
) -> None:
    buckets = GraphBuckets.of("FULL_AND_PIECEWISE", sizes, max_num_seqs)
    assert max(buckets.full) <= max_num_seqs
    assert (buckets.choose(max_num_seqs, max_num_seqs) is not None) == (max(sizes) >= max_num_seqs)


@given(MODES, SIZES, st.integers(1, 300))
def test_graphs_are_captured_largest_first(mode: str, sizes: tuple[int, ...], max_num_seqs: int) -> None:
    buckets = GraphBuckets.of(mode, sizes, max_num_seqs)
    order = buckets.largest_first()
    assert [bucket.size for bucket in order] == sorted((bucket.size for bucket in order), reverse=True)
    assert {b.size for b in order if b.kind == "full"} == set(buckets.full)
    assert {b.size for b in order if b.kind == "piecewise"} == set(buckets.piecewise)


def test_memory_of_all_graphs_is_told_from_two_of_each_kind() -> None:
    """The first of a kind fills the pool; the others cost what the second does."""
    taken, captured = [1000], []
    cost = {("piecewise", 64): 500, ("full", 16): 200, ("piecewise", 32): 7, ("full", 8): 3}

    def capture(buckets: list[Bucket]) -> None:
        captured.extend(buckets)
        taken[0] += sum(cost[bucket] for bucket in buckets)

    buckets = GraphBuckets((1, 2, 8, 16), (8, 16, 32, 64))
    assert measure_graphs(buckets, capture, lambda: taken[0]) == 500 + 200 + 3 * 7 + 3 * 3
    assert captured == [("piecewise", 64), ("piecewise", 32), ("full", 16), ("full", 8)]
    assert measure_graphs(GraphBuckets((), (64,)), capture, lambda: taken[0]) == 500


def test_memory_that_others_give_back_while_graphs_are_measured_is_not_the_graphs() -> None:
    taken = iter([1000, 1300, 1300, 900])
    assert measure_graphs(GraphBuckets((), (32, 64)), lambda buckets: None, lambda: next(taken)) == 300


def test_the_memory_table_adds_up() -> None:
    gib = 2**30
    use = MemoryUse(total=80 * gib, usable=72 * gib, others=2 * gib, weights=16 * gib, activations=3 * gib, graphs=gib)
    assert use.kv_cache == 50 * gib
    assert use.table(40 * gib) == [
        "  weights          16.00 GiB",
        "  activations       3.00 GiB",
        "  CUDA graphs       1.00 GiB",
        "  KV cache         40.00 GiB",
        "  others            2.00 GiB",
        "  free             18.00 GiB",
        "  in all           80.00 GiB",
    ]
    assert MemoryUse(80, 72, 2, 71).kv_cache == 0
