"""FreeKVCacheBlockQueue against an ordered dictionary, which takes blocks out of the middle at once."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given, settings
from hypothesis import strategies as st

from fathom.core.kv_cache.free_queue import FreeKVCacheBlockQueue


@settings(deadline=None)
@given(data=st.data())
def test_it_hands_blocks_out_in_the_order_of_a_queue_that_unlinks_them(data: st.DataObject) -> None:
    num_blocks = data.draw(st.integers(2, 12))
    queue, model = FreeKVCacheBlockQueue(num_blocks), OrderedDict.fromkeys(range(1, num_blocks))
    in_use: list[int] = []
    findable: set[int] = set()  # of those in the model
    for action in data.draw(
        st.lists(st.sampled_from(["pop", "append", "appendleft", "remove", "remove", "forget"]), max_size=80)
    ):
        if action == "pop":
            count = data.draw(st.integers(0, len(model)))
            expected = [model.popitem(last=False)[0] for _ in range(count)]
            assert queue.popleft_n(count) == expected
            findable.difference_update(expected)
            in_use += expected
        elif action == "append":
            blocks = data.draw(st.lists(st.sampled_from(in_use), unique=True)) if in_use else []
            queue.append_n(blocks)
            model.update(dict.fromkeys(blocks))
            findable.update(blocks)
            in_use = [block for block in in_use if block not in blocks]
        elif action == "appendleft" and in_use:
            block = in_use.pop()
            queue.appendleft(block)
            model[block] = None
            model.move_to_end(block, last=False)
        elif action == "remove" and findable:
            block = data.draw(st.sampled_from(sorted(findable)))
            queue.remove(block)
            del model[block]
            findable.remove(block)
            in_use.append(block)
        elif action == "forget":
            queue.forget()
            model = OrderedDict.fromkeys(sorted(model, key=lambda block: block not in findable))
            findable.clear()
        assert list(queue) == list(model)
        assert len(queue) == len(model)


def test_entries_of_blocks_that_are_taken_back_again_and_again_do_not_pile_up() -> None:
    queue = FreeKVCacheBlockQueue(5)
    blocks = queue.popleft_n(4)
    queue.append_n(blocks)
    for _ in range(1000):
        queue.remove(2)
        queue.append_n([2])
    assert len(queue._cached) <= 4 + 5 + 1
    assert list(queue) == [1, 3, 4, 2]
