"""Engines of several workers answer as an engine of one does: with preemption, shared prefixes and steps ahead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fathom import LLM, SamplingParams
from fathom.core.engine_core import EngineCore, LaunchedStep
from tests.server.processes import Server
from tests.worker import delayed_device

PROMPTS = [[3 + (11 * i * (k + 1) + k) % 500 for i in range(5 + 9 * k)] for k in range(7)]
PROMPTS += [[*PROMPTS[6][:40], 9, 9, k] for k in range(3)]  # a common prefix
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, logprobs=2)
MIXED = [
    GREEDY
    if index % 2
    else SamplingParams(temperature=0.9, seed=index, max_tokens=25, prompt_logprobs=1, n=1 + index % 3)
    for index in range(len(PROMPTS))
]
POOL_TOKENS = 260
SAME = 1e-5 * 20  # logits of these models are up to 20 or so


def start(model: str | Path, **options: Any) -> LLM:
    defaults = {"num_threads": 2, "max_num_seqs": 16, "max_model_len": 128, "show_progress": False, "seed": 0}
    return LLM(str(model), **(defaults | options))


def answers(llm: LLM, params: SamplingParams | list[SamplingParams]) -> list[Any]:
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    return [(a.token_ids, a.finish_reason) for output in outputs for a in output.outputs], [
        [{token: entry.logprob for token, entry in position.items()} for position in positions if position]
        for output in outputs
        for positions in (output.prompt_logprobs or [], *(a.logprobs or [] for a in output.outputs))
    ]


def check_same(found: list[Any], expected: list[Any]) -> None:
    assert found[0] == expected[0]
    for positions, others in zip(found[1], expected[1], strict=True):
        for position, other in zip(positions, others, strict=True):
            assert position == pytest.approx(other, abs=SAME)


@pytest.mark.parametrize(
    ("name", "options", "is_delayed"),
    [
        ("gemma3", {"tensor_parallel_size": 2, "async_scheduling": True}, False),
        ("llama-gqa", {"pipeline_parallel_size": 2}, False),
        ("llama-gqa", {"tensor_parallel_size": 2, "async_scheduling": True}, True),
        ("llama-gqa", {"pipeline_parallel_size": 2}, True),
    ],
    ids=["TP=2", "PP=2", "TP=2, tokens on the device", "PP=2, tokens on the device"],
)
def test_answers_are_those_of_one_worker(
    tiny: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    options: dict[str, Any],
    is_delayed: bool,
) -> None:
    if is_delayed:
        delayed_device.write_plugin(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
    with start(tiny(name), multiprocess=False) as llm:
        expected = [answers(llm, GREEDY), answers(llm, MIXED)]
        bytes_per_token = sum(spec.bytes_per_token for spec in llm.collective_rpc("get_kv_cache_specs")[0])
    # A pool so small that requests are preempted, half of it with each worker.
    options |= {"kv_cache_memory_bytes": POOL_TOKENS * bytes_per_token // 2, "max_num_batched_tokens": 32}
    with start(tiny(name), **options) as llm:
        for _ in range(2):  # the second time with what the first has left in the prefix cache
            check_same(answers(llm, GREEDY), expected[0])
        check_same(answers(llm, MIXED), expected[1])
        stats = llm.get_stats()
        assert stats["num_preemptions"] > 0
        assert stats["prefix_cache_hits"] > 0
        assert stats["kv_cache_usage"] == 0.0
        assert llm.llm_engine.engine_core.call("check_invariants")
        assert len(llm.collective_rpc("weight_bytes")) == 2


@pytest.mark.parametrize("split", ["tensor_parallel_size", "pipeline_parallel_size"])
@pytest.mark.parametrize(
    "name",
    ["llama-mqa-tied", "llama-biases", "llama-head-dim", "mistral-window", "qwen2", "qwen3-tied", "gemma3-softcaps"],
)
def test_every_architecture(tiny: Callable[[str], Path], expected: Expected, name: str, split: str) -> None:
    options: dict[str, Any] = {split: 2, "async_scheduling": True, "max_num_batched_tokens": 32}
    with start(tiny(name), **options, kv_cache_memory_bytes=expected.pool_bytes(name)) as llm:
        check_same(answers(llm, GREEDY), expected.answers(name))
        stats = llm.get_stats()
        assert stats["prefix_cache_hits"] > 0
        if name != "mistral-window":  # which never lacks a block: those behind the window come back
            assert stats["num_preemptions"] > 0


class Expected:
    """What one worker says to each model."""

    def __init__(self, tiny: Callable[[str], Path]) -> None:
        self._tiny = tiny
        self._found: dict[str, tuple[Any, int]] = {}

    def answers(self, name: str) -> Any:
        return self._of(name)[0]

    def pool_bytes(self, name: str) -> int:
        """Of each of two workers' share of a pool so small that requests are preempted."""
        return POOL_TOKENS * self._of(name)[1] // 2

    def _of(self, name: str) -> tuple[Any, int]:
        if name not in self._found:
            with start(self._tiny(name), multiprocess=False) as llm:
                specs = llm.collective_rpc("get_kv_cache_specs")[0]
                self._found[name] = answers(llm, GREEDY), sum(spec.bytes_per_token for spec in specs)
        return self._found[name]


@pytest.fixture(scope="module")
def expected(tiny: Callable[[str], Path]) -> Expected:
    return Expected(tiny)


def test_as_many_steps_are_under_way_as_there_are_stages(
    tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where no prompt is cut into chunks, no request is in two of them."""
    under_way: list[list[set[str]]] = []
    finish = EngineCore._finish_step

    def noting_finish(core: EngineCore, step: LaunchedStep) -> Any:
        under_way.append([set(launched.work.num_scheduled_tokens) for launched in (step, *core._in_flight)])
        return finish(core, step)

    monkeypatch.setattr(EngineCore, "_finish_step", noting_finish)
    with start(tiny("llama-gqa"), pipeline_parallel_size=2, multiprocess=False, enable_prefix_caching=False) as llm:
        answers(llm, GREEDY)
    assert max(map(len, under_way)) == 2
    both = [steps for steps in under_way if len(steps) == 2]
    assert len(both) > len(under_way) / 2
    assert not any(first & second for first, second in both)
    under_way.clear()
    with start(tiny("llama-gqa"), pipeline_parallel_size=2, multiprocess=False, max_num_batched_tokens=16) as llm:
        answers(llm, GREEDY)  # with chunks of one prompt there would be steps enough
    assert max(map(len, under_way)) == 2


@pytest.mark.parametrize("flag", ["-tp", "-pp"])
def test_a_server_of_two_workers(tiny: Callable[[str], Path], tmp_path: Path, expected: Expected, flag: str) -> None:
    """The same prompts twice: the second time from the prefix cache, each time with requests that are preempted."""
    options = ["--num-threads=2", "--max-model-len=128", "--max-num-batched-tokens=32", "--async-scheduling"]
    options += [f"--kv-cache-memory-bytes={expected.pool_bytes('qwen2')}"]
    server = Server(tiny("qwen2"), tmp_path, *options, flag, "2")
    try:
        body = {"prompt": PROMPTS, "max_tokens": 40, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        for _ in range(2):
            choices = server.post("/v1/completions", **body).json()["choices"]
            found = [choice["token_ids"] for choice in choices]
            assert found == [list(tokens) for tokens, _ in expected.answers("qwen2")[0]]
        metrics = server.metrics()
        assert metrics["num_preemptions_total"] > 0
        assert metrics["prefix_cache_hits_total"] > 0
    finally:
        assert server.stop() == 0


def test_the_default_model_with_packed_weights(smollm2_path: Path) -> None:
    """Nine heads on two workers. Activations stay float32: rounded to int8, sums in another order show."""
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    prompts = ["The capital of France is", "def fibonacci(n):\n"]
    options = {"activations": "float32", "kv_cache_dtype": "float32", "max_num_batched_tokens": 256}
    found = []
    for size in (1, 2):
        with start(smollm2_path, tensor_parallel_size=size, multiprocess=size > 1, **options) as llm:
            found.append([o.outputs[0].token_ids for o in llm.generate(prompts, params, use_tqdm=False)])
            weight_bytes = llm.collective_rpc("weight_bytes")
    assert found[0] == found[1]
    assert len(weight_bytes) == 2
