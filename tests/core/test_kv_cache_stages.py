"""How many blocks the stages of a pipeline have: as many as the one with the most pages can hold."""

from __future__ import annotations

import pytest

from fathom.core.kv_cache.groups import make_kv_cache_config
from fathom.kv_cache_spec import LayerKVSpec

PAGE = 2 * 8 * 4 * 4  # two numbers of float32 for each of 8 dimensions and 4 tokens


@pytest.mark.parametrize(
    ("windows", "num_stages", "pages_of_stages"),
    [
        ((None,) * 6, 1, [6]),
        ((None,) * 6, 2, [3, 3]),
        ((None,) * 5, 2, [2, 3]),
        ((8, 8, 8, 8, None, None), 2, [2, 2]),  # groups [0, 1], [2, 3], [4, 5]: a stage may have all of one
    ],
)
def test_blocks_of_stages(windows: tuple[int | None, ...], num_stages: int, pages_of_stages: list[int]) -> None:
    specs = [LayerKVSpec(1, 8, "float32", window) for window in windows]
    config = make_kv_cache_config(specs, 4, 40 * PAGE, 64, 100, 16, num_stages)
    assert config.num_blocks == 40 // max(pages_of_stages)
    first = 0
    for stage, pages in enumerate(pages_of_stages):
        last = (stage + 1) * len(windows) // num_stages
        own = config.of_layers(range(first, last), specs[0])
        assert own.layers_per_group == pages
        assert own.bytes_per_block == pages * PAGE
        assert sorted(layer for group in own.groups for layer in group.layers) == list(range(last - first))
        assert [group.window for group in own.groups] == [group.window for group in config.groups]
        first = last
