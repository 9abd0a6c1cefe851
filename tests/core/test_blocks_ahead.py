"""The memory of blocks that come next is made ready while the engine is idle."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fathom import LLM, SamplingParams
from fathom.core.blocks_ahead import BlocksAhead
from fathom.core.kv_cache.block_pool import BlockPool

MB = 2**20


def ready_after(used: int, num_blocks: int, block_bytes: int, is_of_use: bool = True) -> list[tuple[int, int]]:
    """The pieces that are made ready, in order, once blocks up to `used` were handed out."""
    pool, pieces = BlockPool(num_blocks), []

    def provide(first: int, end: int) -> bool:
        pieces.append((first, end))
        return is_of_use

    ahead = BlocksAhead(provide, pool, block_bytes)
    pool.release(pool.allocate(used - 1))  # block 0 is the null block
    while ahead.provide_some():
        pass
    return pieces


def test_as_much_is_made_ready_as_was_used_in_pieces_of_2_megabytes() -> None:
    assert ready_after(5, 100, MB) == [(5, 7), (7, 9), (9, 10)]
    assert ready_after(5, 100, 3 * MB) == [(5, 6), (6, 7), (7, 8), (8, 9), (9, 10)]
    assert ready_after(2, 100, 1) == [(2, 4)]


def test_never_more_than_there_is_or_half_a_gigabyte() -> None:
    assert ready_after(7, 10, 3 * MB) == [(7, 8), (8, 9), (9, 10)]
    assert ready_after(10, 10, MB) == []
    assert ready_after(1000, 10_000, MB)[-1] == (1510, 1512)


def test_nothing_is_done_before_anything_was_used_nor_again_where_it_is_of_no_use() -> None:
    assert BlocksAhead(lambda first, end: True, BlockPool(100), MB).provide_some() is True  # one, beside the null block
    assert ready_after(5, 100, MB, is_of_use=False) == [(5, 7)]


def test_what_was_made_ready_is_not_again_and_goes_on_from_what_is_used_since() -> None:
    pool, pieces = BlockPool(100), []
    ahead = BlocksAhead(lambda first, end: pieces.append((first, end)) or True, pool, 2 * MB)
    pool.allocate(2)
    assert [ahead.provide_some() for _ in range(4)] == [True, True, True, False]
    pool.allocate(4)
    assert [ahead.provide_some() for _ in range(8)] == [True] * 7 + [False]
    assert pieces == [(block, block + 1) for block in (3, 4, 5, *range(7, 14))]


def kv_memory(process: psutil.Process, size: int) -> int:
    """Bytes that the system has given to the mapping that holds a KV cache of so many bytes, and its neighbours."""
    mappings = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{process.pid}/smaps").read_text())
    in_huge_pages = [mapping for mapping in mappings if " hg" in mapping]
    fields = [dict(re.findall(r"^(\w+): +(\d+) kB$", mapping, re.MULTILINE)) for mapping in in_huge_pages]
    return sum(int(mapping["Rss"]) * 1024 for mapping in fields if int(mapping["Size"]) * 1024 >= size)


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="its mapping is known by them")
def test_an_engine_process_does_it_when_it_has_nothing_else_to_do(tiny: Callable[[str], Path]) -> None:
    before = set(psutil.Process().children())
    with LLM(tiny("llama-gqa"), kv_cache_memory_bytes=96 * MB, show_progress=False) as llm:
        (engine,) = set(psutil.Process().children()) - before
        ready = llm.llm_engine.ready
        prompts = [[5 + number, *range(5, 95), *range(5, 95), *range(5, 64)] for number in range(64)]
        llm.generate(prompts, SamplingParams(max_tokens=1), use_tqdm=False)
        used = 64 * (len(prompts[0]) // ready.block_size) * (ready.kv_cache_bytes // ready.num_kv_blocks)
        assert used >= 4 * MB
        deadline = time.monotonic() + 60
        while kv_memory(engine, ready.kv_cache_bytes) < 2 * used and time.monotonic() < deadline:
            time.sleep(0.05)
        assert 2 * used <= kv_memory(engine, ready.kv_cache_bytes) <= 2 * used + 8 * MB
