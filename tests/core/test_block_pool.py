"""BlockPool against a model of plain lists."""

from __future__ import annotations

import random

import pytest

from fathom.core.kv_cache.block_pool import BlockPool


def test_blocks_are_handed_out_once_and_never_the_null_block() -> None:
    pool = BlockPool(5)
    assert pool.allocate(4) == [1, 2, 3, 4]
    assert pool.num_free == 0
    assert pool.usage == 1.0


def test_cached_blocks_are_evicted_least_recently_used_first_and_empty_ones_before_them() -> None:
    pool = BlockPool(5)
    blocks = pool.allocate(4)
    for block in blocks[:3]:
        pool.register(0, block, bytes([block]))
    pool.release([3, 2, 1, 4])  # 4 holds nothing that can be found again
    assert pool.allocate(1) == [4]
    assert pool.allocate(1) == [3]
    assert pool.find(0, bytes([3])) is None
    assert pool.find(0, bytes([2])) == 2


def test_a_hit_takes_a_free_block_out_of_the_queue() -> None:
    pool = BlockPool(4)
    (block,) = pool.allocate(1)
    pool.register(0, block, b"h")
    pool.release([block])
    assert pool.num_free == 3
    pool.touch([block])
    assert pool.num_free == 2
    assert block not in pool.allocate(2)


def test_groups_cache_the_same_hash_apart() -> None:
    pool = BlockPool(4, num_groups=2)
    first, second = pool.allocate(2)
    pool.register(0, first, b"h")
    pool.register(1, second, b"h")
    assert (pool.find(0, b"h"), pool.find(1, b"h")) == (first, second)


def test_reset_forgets_prefixes_and_keeps_blocks_in_use() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.register(0, blocks[0], b"h")
    pool.reset_cache()
    assert pool.find(0, b"h") is None
    assert pool.num_free == 1
    pool.check_invariants()


def test_after_a_reset_blocks_that_were_used_are_handed_out_before_new_ones() -> None:
    pool = BlockPool(10)
    blocks = pool.allocate(3)
    for block in blocks:
        pool.register(0, block, b"%d" % block)
    pool.release(blocks)
    pool.reset_cache()
    assert pool.allocate(4) == [1, 2, 3, 4]
    assert pool.num_ever_used == 5


@pytest.mark.parametrize("seed", range(4))
def test_two_hundred_thousand_random_operations_keep_the_books_balanced(seed: int) -> None:
    """References, hashes and free blocks are those of a model that counts everything the slow way."""
    chance = random.Random(seed)
    pool = BlockPool(chance.choice([3, 17, 64]), num_groups=2)
    holders: list[list[int]] = []
    content: dict[int, tuple[int, bytes]] = {}
    for step in range(200_000):
        action = chance.random()
        if action < 0.4 and pool.num_free:
            blocks = pool.allocate(chance.randint(1, min(4, pool.num_free)))
            for block in blocks:
                assert all(block not in held for held in holders), "a block was handed out twice"
                content.pop(block, None)
            holders.append(blocks)
        elif action < 0.6 and holders:
            block = chance.choice(chance.choice(holders))
            group, block_hash = chance.randrange(2), bytes([chance.randrange(40)])
            taken = block in content or (group, block_hash) in content.values()
            pool.register(group, block, block_hash)
            if not taken:
                content[block] = (group, block_hash)
        elif action < 0.75:
            group, block_hash = chance.randrange(2), bytes([chance.randrange(40)])
            found = pool.find(group, block_hash)
            assert found == next((b for b, c in content.items() if c == (group, block_hash)), None)
            if found is not None and all(found not in held for held in holders[-3:]):
                pool.touch([found])
                holders.append([found])
        elif holders:
            pool.release(reversed(holders.pop(chance.randrange(len(holders)))))
        in_use = {block for held in holders for block in held}
        assert pool.num_free == pool.num_blocks - 1 - len(in_use)
        if step % 5_000 == 0:
            pool.check_invariants()
