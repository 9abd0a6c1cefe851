"""The soak: its workload, its arithmetic, and a small one in earnest."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.soak.__main__ import Soak, start_server
from benchmarks.soak.clients import Seen
from benchmarks.soak.memory import fit
from benchmarks.soak.tally import Tally
from benchmarks.soak.workload import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Workload


def test_requests_depend_on_seed_and_number_alone() -> None:
    workload = Workload(3, first_staying=1000)
    asked = [workload[number] for number in range(1200)]
    assert asked[7] == Workload(3, first_staying=1000)[7] != Workload(4, first_staying=1000)[7]
    assert {request.path for request in asked if request.valid} == {COMPLETIONS, CHAT, RESPONSES, MESSAGES}
    assert {request.left for request in asked} == {None, "queue", "prefill", "decode"}
    assert not any(request.left for request in asked[1000:])
    assert sum(not request.valid for request in asked) == pytest.approx(120, abs=40)
    assert sum(request.left is not None for request in asked) == pytest.approx(200, abs=50)
    bodies = [json.loads(request.content) for request in asked if request.valid]
    fields = {name for body in bodies for name in body}
    assert {"n", "stop", "logprobs", "tools", "seed", "stream", "cache_salt", "priority", "bad_words"} <= fields


def test_the_slope_and_its_uncertainty() -> None:
    requests = np.arange(400)
    exact = fit(requests, 1_000_000 + 250 * requests)
    assert (exact.bytes_per_request, exact.uncertainty) == pytest.approx((250, 0), abs=1e-6)
    noisy = fit(requests, np.random.default_rng(0).normal(0, 1000, 400).astype(int))
    assert abs(noisy.bytes_per_request) < noisy.uncertainty < 3


def test_counters_are_held_against_what_was_seen() -> None:
    workload = Workload(0, first_staying=1000)
    asked = next(workload[number] for number in range(100) if workload[number].valid and not workload[number].left)
    left = next(workload[number] for number in range(100) if workload[number].left)
    tally = Tally()
    tally.add(Seen(asked, 200, 10, 5, 0, ("stop",)))
    counted = {
        'request_success_total{finished_reason="stop"}': 1.0,
        "time_to_first_token_seconds_count": 1.0,
        "e2e_request_latency_seconds_count": 1.0,
        "prompt_tokens_total": 10.0,
        "generation_tokens_total": 5.0,
        f'http_requests_total{{path="{asked.path}",status="200"}}': 1.0,
    }
    assert all(row.right for row in tally.rows({}, counted))
    assert [row.name for row in tally.rows({}, counted | {"prompt_tokens_total": 11.0}) if not row.right] == [
        "prompt tokens"
    ]
    tally.add(Seen(left, None))
    assert all(row.right for row in tally.rows({}, counted | {"prompt_tokens_total": 11.0}))
    assert not all(row.right for row in tally.rows({}, counted | {"prompt_tokens_total": 9.0}))


def test_a_small_soak(tiny_chat_model: Path, tmp_path: Path) -> None:
    """Everything but the slope, which takes thousands of requests to show."""
    server = start_server("tiny", str(tiny_chat_model), tmp_path, ["--num-threads=1"])
    try:
        soak = Soak(server, requests=200, concurrency=32, seed=0, rest_s=0)
        soak.run()
    finally:
        assert server.end() == []
    assert [failure for failure in soak.failures if "B a request" not in failure] == []
