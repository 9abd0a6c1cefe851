"""benchmarks/scale.py: a small run serves all of its requests, and counts what it served."""

from __future__ import annotations

from benchmarks.scale import Run, Size


def test_every_request_ends_and_every_token_is_counted() -> None:
    run = Run(Size(requests=200, running=16, blocks=2000), seed=3)
    half, whole = run.until(100), run.until(200)
    assert 100 <= half.ended < whole.ended == 200
    assert whole.preemptions == 0
    # A request computes its prompt but for what was cached, and each sampled token but the last.
    assert whole.tokens == whole.queries - whole.hits + whole.sampled - whole.ended


def test_a_pool_that_is_too_small_preempts_and_loses_nothing() -> None:
    whole = Run(Size(requests=200, running=16, blocks=200), seed=3).until(200)
    assert whole.ended == 200
    assert whole.preemptions > 0
