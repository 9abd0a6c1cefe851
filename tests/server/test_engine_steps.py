"""/engine/steps: the steps that there were and those to come, with the numbers of what was asked; all of it bounded."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fathom.entrypoints.server.step_log import KEPT_STEPS, StepLog
from fathom.entrypoints.server.steps import MOST_WATCHERS
from fathom.wire.messages import EngineCoreOutputs, SchedulerStats, StepStats
from tests.client.processes import PATIENCE_S, comes_true
from tests.conftest import ENDLESS_CONTEXT
from tests.server.conftest import POOL
from tests.server.processes import Server

STREAM = {"Accept": "text/event-stream"}


def events(answer: httpx.Response) -> Iterator[Any]:
    for line in answer.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def steps_of(server: Server) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = server.http.get("/engine/steps").json()["steps"]
    return steps


def number_of_steps(server: Server) -> int:
    return max((step["number"] for step in steps_of(server)), default=0)


def ask(server: Server, prompt: list[int], max_tokens: int) -> dict[str, Any]:
    usage: dict[str, Any] = server.post(
        "/v1/completions", prompt=prompt, max_tokens=max_tokens, ignore_eos=True
    ).json()["usage"]
    return usage


def test_the_steps_add_up_to_the_usage(server: Server) -> None:
    server.post("/v1/completions", prompt="warm", max_tokens=1)
    begin = number_of_steps(server)
    prompt = [7, 11, 13] * 20
    usages = [ask(server, prompt, 5), ask(server, prompt, 9)]
    steps = [step for step in steps_of(server) if step["number"] > begin]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached == [0, 48]
    assert [step["context_tokens"] for step in steps if step["context_tokens"]] == [60, 12]
    assert sum(step["generation_tokens"] for step in steps) == 4 + 8  # an answer's first token comes with its prompt
    assert [step["prefix_hits"] for step in steps if step["context_tokens"]] == cached
    assert [step["number"] for step in steps] == list(range(begin + 1, begin + 15))
    assert steps[0]["annotation"] == "execute_context_1(60)_generation_0(0)"
    assert steps[1]["annotation"] == "execute_context_0(0)_generation_1(1)"
    assert all(step["model_ms"] > 0 and step["schedule_ms"] > 0 and step["update_ms"] > 0 for step in steps)


def test_blocks_in_use_cached_and_free(server: Server) -> None:
    whole = server.http.get("/engine/steps").json()
    engine, before = whole["engine"], whole["state"]
    assert (engine["model"], engine["block_size"], engine["max_model_len"]) == ("tiny", 16, ENDLESS_CONTEXT)
    assert (before["running"], before["waiting"], before["blocks_used"]) == (0, 0, 0)
    usage = ask(server, [5, 17] * 40, 20)
    answer = server.http.get("/engine/steps").json()
    during = answer["steps"][-2]["state"]
    assert during["running"] == 1
    assert during["blocks_used"] == -(-(usage["total_tokens"] - 1) // 16)
    assert answer["state"]["blocks_used"] == 0
    assert answer["state"]["blocks_cached"] - before["blocks_cached"] == (usage["total_tokens"] - 1) // 16
    assert answer["state"]["blocks_cached"] <= engine["num_blocks"]


def test_a_step_that_gives_nobody_anything_is_told_too(server: Server) -> None:
    """The prompt is computed in two chunks or more, and only the last one ends with a token."""
    begin = number_of_steps(server)
    ask(server, [3, 4, 5] * 1000, 1)
    steps = [step for step in steps_of(server) if step["number"] > begin]
    assert len(steps) >= 2
    assert sum(step["context_tokens"] for step in steps) == 3000


def test_a_stream_brings_what_there_was_and_then_what_comes(server: Server) -> None:
    ask(server, [9, 8, 7], 2)
    begin = number_of_steps(server)
    with server.http.stream("GET", "/engine/steps", headers=STREAM) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        coming = events(answer)
        first = next(coming)
        assert first["engine"]["model"] == "tiny"
        assert first["steps"][-1]["number"] == begin
        with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as other:
            other.post("/v1/completions", json={"prompt": [2, 3], "max_tokens": 30, "ignore_eos": True})
        numbers: list[int] = []
        while not numbers or numbers[-1] < begin + 30:
            event = next(coming)
            assert event["engine"] is None
            numbers += [step["number"] for step in event["steps"]]
        assert numbers == list(range(begin + 1, begin + 31))
        idle = next(coming)
        assert (idle["steps"], idle["state"]["running"], idle["state"]["blocks_used"]) == ([], 0, 0)


def test_only_so_many_watch_and_who_leaves_makes_room(guarded: Server) -> None:
    with contextlib.ExitStack() as watching:
        for _ in range(MOST_WATCHERS):
            answer = watching.enter_context(guarded.http.stream("GET", "/engine/steps", headers=STREAM))
            assert answer.status_code == 200
        refused = guarded.http.get("/engine/steps", headers=STREAM)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_watchers")
        assert guarded.http.get("/engine/steps").status_code == 200

    def may_watch() -> bool:
        with guarded.http.stream("GET", "/engine/steps", headers=STREAM) as answer:
            return answer.status_code == 200

    assert comes_true(may_watch), "nobody's place was freed"


def test_a_watcher_does_not_keep_the_server(tiny_chat_model: Path, tmp_path: Path) -> None:
    server = Server(tiny_chat_model, tmp_path, POOL)
    with (
        httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http,
        http.stream("GET", "/engine/steps", headers=STREAM) as answer,
    ):
        coming = events(answer)
        next(coming)
        assert server.stop() == 0
        assert all(event["steps"] == [] for event in coming)  # and it ends


@pytest.mark.parametrize("number", [1, KEPT_STEPS, KEPT_STEPS + 1, 3 * KEPT_STEPS])
def test_the_log_is_bounded_and_says_what_is_missing(number: int) -> None:
    log = StepLog()
    for index in range(number):
        stats = SchedulerStats(1, 0, 0.5, 10, 5, 2 * index, index)
        log.step(EngineCoreOutputs([], stats=stats, step=StepStats(0, 0, 1, 1, 7, 0.0, 0.1, 0.2, 0.3)))
    log.step(EngineCoreOutputs([]))  # no step was run
    steps, skipped = log.since(0)
    assert (len(steps), skipped) == (min(number, KEPT_STEPS), max(0, number - KEPT_STEPS))
    assert [step.number for step in steps] == list(range(skipped + 1, number + 1))
    assert log.since(number) == ([], 0)
    assert [step.number for step in log.since(number - 1)[0]] == [number]
    if number > 1:
        assert (steps[-1].preemptions, steps[-1].prefix_hits, steps[-1].model_ms) == (2, 7, 200.0)


def test_a_server_sizes_its_steps_to_a_latency_unless_it_is_told_their_size(server: Server, guarded: Server) -> None:
    assert re.search(
        r"chose max_num_batched_tokens=\d+: a prefill step of it .* itl_target_ms=150", server.log.read_text()
    )
    assert "a prefill step of it" not in guarded.log.read_text()
