"""resolve_graphs: which steps are captured as CUDA graphs, for which sizes, and what rules it out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fathom.config import EngineConfig
from fathom.errors import ConfigError
from fathom.resolve import resolve
from fathom.resolve_graphs import default_sizes
from tests.test_config import HARDWARE, MODEL


def chosen(**options: Any) -> tuple[str | None, tuple[int, ...] | None]:
    config, _ = resolve(EngineConfig.from_options(**options), MODEL, HARDWARE)
    assert resolve(config, MODEL, HARDWARE)[0] == config
    return config.runtime.cudagraph_mode, config.runtime.cudagraph_capture_sizes


def test_default_sizes_are_dense_where_batches_are_small() -> None:
    mode, sizes = chosen(device="cuda")
    assert mode == "FULL_AND_PIECEWISE"
    assert sizes == (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))


@given(st.integers(1, 2000))
def test_the_largest_default_size_is_the_one_that_was_asked_for(largest: int) -> None:
    sizes = default_sizes(largest)
    assert sizes[-1] == largest
    assert list(sizes) == sorted(set(sizes))


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"max_num_seqs": 3}, (1, 2, 4, 6)),
        ({"max_num_seqs": 3, "max_num_batched_tokens": 5}, (1, 2, 4, 5)),
        ({"max_cudagraph_capture_size": 10}, (1, 2, 4, 8, 10)),
        ({"cudagraph_capture_sizes": [64, 1, 16, 16]}, (1, 16, 64)),
        ({"cudagraph_capture_sizes": [64, 1, 16], "max_cudagraph_capture_size": 20}, (1, 16)),
        ({"cudagraph_capture_sizes": [1, 512], "max_num_seqs": 2, "max_num_batched_tokens": 300}, (1, 300)),
        ({"cudagraph_mode": "NONE"}, ()),
    ],
    ids=str,
)
def test_sizes_that_are_asked_for(options: dict[str, Any], sizes: tuple[int, ...]) -> None:
    assert chosen(device="cuda", **options)[1] == sizes


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"device": "cpu"}, "device=cpu has none"),
        ({"device": "cuda", "enforce_eager": True}, "enforce_eager runs every step call by call"),
    ],
    ids=str,
)
def test_what_rules_graphs_out(options: dict[str, Any], why: str) -> None:
    assert chosen(**options) == ("NONE", ())
    with pytest.raises(ConfigError) as caught:
        chosen(**options, cudagraph_mode="PIECEWISE")
    assert str(caught.value) == f"cudagraph_mode=PIECEWISE, but {why}. Leave cudagraph_mode out."
