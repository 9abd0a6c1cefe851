"""CUDAGraphs: captured steps give the tokens of steps that run call by call, padded and mixed ones too.

Only the capture itself is a stand-in (fake_graphs.py); it replays what was captured, with what was frozen frozen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fathom import LLM, SamplingParams, resolve_graphs
from fathom.kernels.attention import ref as attention_ref
from fathom.models.decoder import CausalLM
from fathom.worker import device, worker
from fathom.worker.graph_buckets import Bucket
from fathom.worker.graphs import CUDAGraphs
from fathom.worker.model_runner import ModelRunner
from fathom.worker.worker import Worker
from tests.worker.delayed_device import DelayedDevice
from tests.worker.fake_graphs import FakeCapture, plain_attention, use_plain_torch, write_plugin

SIZES = [1, 2, 4, 6, 24]
# Long and short ones, so that steps are mixed, and chunks of a prompt stand beside decodes.
PROMPTS = [{"prompt_token_ids": [(7 * index * n + 3) % 512 for n in range(1, 3 + 11 * index)]} for index in range(5)]
PARAMS = [SamplingParams(temperature=0.0, max_tokens=14 - 2 * index, ignore_eos=True) for index in range(5)]


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> FakeCapture:
    """A CPU that can capture graphs."""
    fake = FakeCapture()
    use_plain_torch(monkeypatch)
    monkeypatch.setattr(resolve_graphs, "DEVICES", ("cpu",))
    monkeypatch.setattr(device.CPUDevice, "graph_capture", lambda self: fake)
    return fake


def answers(path: Path, **options: Any) -> list[tuple[int, ...]]:
    """Tokens of each prompt, the first one asked for twice, the second time from the prefix cache."""
    defaults = {"dtype": "float32", "max_model_len": 128, "num_threads": 1, "max_num_seqs": 5, "show_progress": False}
    with LLM(path, multiprocess=False, max_num_batched_tokens=32, **{**defaults, **options}) as llm:
        outputs = llm.generate([*PROMPTS, PROMPTS[4]], [*PARAMS, PARAMS[0]], use_tqdm=False)
        assert llm.get_stats()["kv_cache_usage"] == 0
    return [tuple(output.outputs[0].token_ids) for output in outputs]


def served(monkeypatch: pytest.MonkeyPatch) -> list[Bucket | None]:
    """Grows by the bucket that serves each step, None for one that runs call by call."""
    buckets: list[Bucket | None] = []
    run, call = CUDAGraphs.run, ModelRunner._call_model

    def noting_run(self: CUDAGraphs, num_reqs: int, num_tokens: int, *rest: Any) -> torch.Tensor:
        buckets.append(self._buckets.choose(num_reqs, num_tokens))
        return run(self, num_reqs, num_tokens, *rest)

    def noting_call(self: ModelRunner, scheduled: Any) -> torch.Tensor:
        buckets.append(None)
        return call(self, scheduled)

    monkeypatch.setattr(CUDAGraphs, "run", noting_run)
    monkeypatch.setattr(ModelRunner, "_call_model", noting_call)
    return buckets


@pytest.mark.parametrize("name", ["llama-gqa", "qwen3-tied", "gemma3"])
def test_tokens_are_those_of_steps_run_call_by_call(
    tiny: Callable[[str], Path], capture: FakeCapture, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    eager = answers(tiny(name), enforce_eager=True)
    assert capture.num_replays == 0
    buckets = served(monkeypatch)
    assert answers(tiny(name), cudagraph_capture_sizes=SIZES) == eager
    steps = buckets[2:]  # behind those of the warm-up
    assert {bucket.kind for bucket in steps if bucket} == {"full", "piecewise"}
    assert None in steps  # a prompt's chunk of 32 tokens
    decodes = {bucket.size for bucket in steps if bucket and bucket.kind == "full"}
    assert decodes >= {1, 2, 4, 5}  # 6 is cut to the 5 rows that the batch has


@pytest.mark.parametrize("mode", ["PIECEWISE", "FULL_DECODE_ONLY"])
def test_one_kind_of_graph_alone(
    tiny: Callable[[str], Path], capture: FakeCapture, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    eager = answers(tiny("llama-gqa"), enforce_eager=True)
    buckets = served(monkeypatch)
    assert answers(tiny("llama-gqa"), cudagraph_capture_sizes=SIZES, cudagraph_mode=mode) == eager
    kind = {"PIECEWISE": "piecewise", "FULL_DECODE_ONLY": "full"}[mode]
    assert {bucket.kind for bucket in buckets if bucket} == {kind}


def test_with_steps_scheduled_ahead(tiny: Callable[[str], Path], capture: FakeCapture) -> None:
    eager = answers(tiny("llama-gqa"), enforce_eager=True)
    assert answers(tiny("llama-gqa"), cudagraph_capture_sizes=SIZES, async_scheduling=True) == eager
    assert capture.num_replays > 0


def test_with_tokens_that_stay_on_the_device(
    tiny: Callable[[str], Path], capture: FakeCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph's inputs are filled in on the device, as the tokens of the step before are not known yet."""
    eager = answers(tiny("llama-gqa"), enforce_eager=True)
    monkeypatch.setattr(worker, "make_device", DelayedDevice)
    delayed = answers(tiny("llama-gqa"), cudagraph_capture_sizes=SIZES, async_scheduling=True)
    assert delayed == eager
    assert capture.num_replays > 0


@pytest.mark.parametrize(
    ("name", "split"), [("llama-gqa", {"tensor_parallel_size": 2}), ("gemma3", {"pipeline_parallel_size": 2})], ids=str
)
def test_with_several_workers(
    tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, split: dict[str, int]
) -> None:
    """Their sums are in the graphs, and what stages send is not; tokens stay on the device."""
    eager = answers(tiny(name), enforce_eager=True)
    write_plugin(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(resolve_graphs, "DEVICES", ("cpu",))
    options = {"dtype": "float32", "max_model_len": 128, "num_threads": 2, "max_num_seqs": 5, "show_progress": False}
    options |= {"async_scheduling": True, "max_num_batched_tokens": 32, "cudagraph_capture_sizes": SIZES, **split}
    with LLM(tiny(name), **options) as llm:
        num_replays = llm.collective_rpc("num_replays")
        assert num_replays == [0, 0]
        for _ in range(2):
            outputs = llm.generate([*PROMPTS, PROMPTS[4]], [*PARAMS, PARAMS[0]], use_tqdm=False)
            assert [tuple(output.outputs[0].token_ids) for output in outputs] == eager
        assert min(llm.collective_rpc("num_replays")) > 20
        assert llm.get_stats()["kv_cache_usage"] == 0


@pytest.mark.parametrize("mode", ["FULL_AND_PIECEWISE", "PIECEWISE"])
def test_what_padding_reads_and_computes_reaches_nobody(
    tiny: Callable[[str], Path], capture: FakeCapture, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Before each step the null block and all that graphs hand over is NaN, and inputs point nowhere."""
    eager = answers(tiny("gemma3"), enforce_eager=True)
    run = CUDAGraphs.run

    def poisoned_run(self: CUDAGraphs, num_reqs: int, num_tokens: int, num_complete: int, runner: Any) -> torch.Tensor:
        for buffer in (self._hidden, self._query, self._attended):
            if buffer._tensor is not None:
                buffer._tensor.fill_(torch.nan)
        for cache in runner.kv_caches:
            cache.keys[0].fill_(torch.nan)
            cache.values[0].fill_(torch.nan)
        step = runner.buffers.step
        for array in (step.input_ids, step.positions, *step.slot_mappings):
            array[num_tokens:] = 10**9
        for array in (step.seq_lens, *step.block_tables):
            array[num_reqs:] = 10**9
        step.query_start_loc[num_reqs + 1 :] = 10**9
        return run(self, num_reqs, num_tokens, num_complete, runner)

    monkeypatch.setattr(CUDAGraphs, "run", poisoned_run)
    with torch.inference_mode():
        padded = answers(tiny("gemma3"), cudagraph_capture_sizes=[3, 24], cudagraph_mode=mode)
    assert padded == eager
    assert capture.num_replays > 0


def test_a_step_is_run_before_it_is_captured(
    tiny: Callable[[str], Path], capture: FakeCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What kernels and libraries set up on first use may wait for the device, which a capture may not."""
    runs: list[tuple[int, bool]] = []
    run_layers = CausalLM.run_layers

    def noting(self: CausalLM, entering: torch.Tensor, *rest: Any) -> torch.Tensor:
        if capture.open_session:
            runs.append((len(entering), capture.is_capturing))
        return run_layers(self, entering, *rest)

    monkeypatch.setattr(CausalLM, "run_layers", noting)
    answers(tiny("llama-gqa"), cudagraph_capture_sizes=[1, 6])
    assert runs == [(size, is_captured) for size in (6, 5, 1, 1) for is_captured in (False, True)]


def test_prompt_logprobs_beside_decodes(tiny: Callable[[str], Path], capture: FakeCapture) -> None:
    path = tiny("llama-gqa")
    params = [
        SamplingParams(temperature=0.0, max_tokens=9, logprobs=1),
        SamplingParams(max_tokens=2, prompt_logprobs=2),
    ]
    scores = []
    for options in ({"enforce_eager": True}, {"cudagraph_capture_sizes": [16]}):
        with LLM(
            path, multiprocess=False, dtype="float32", max_model_len=128, max_num_batched_tokens=12, max_num_seqs=2,
            num_threads=1, show_progress=False, **options,
        ) as llm:  # fmt: skip
            outputs = llm.generate(PROMPTS[1:3], params, use_tqdm=False)
        scores.append(
            [
                entry.logprob
                for position in [*outputs[0].outputs[0].logprobs, *outputs[1].prompt_logprobs[1:]]
                for entry in position.values()
            ]
        )
    assert scores[1] == pytest.approx(scores[0], abs=1e-5)
    assert capture.num_replays > 0


def test_a_boot_that_measures_the_largest_batch_and_some_graphs_first(
    tiny: Callable[[str], Path],
    capture: FakeCapture,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As on a GPU, on a cache of one block; the graphs of the real cache are captured anew."""
    eager = answers(tiny("gemma3"), enforce_eager=True)
    profile, taken, asked = device.CPUDevice.profile, iter([100, 170, 200, 203, 300, 310, 400, 401]), []

    def measuring_profile(self: Any, weights: int, run_largest_batch: Any, measure_graphs: Any) -> Any:
        run_largest_batch()
        asked.append(measure_graphs())
        return profile(self, weights, run_largest_batch, measure_graphs)

    monkeypatch.setattr(device.CPUDevice, "profile", measuring_profile)
    monkeypatch.setattr(Worker, "_memory_taken", lambda self: next(taken))
    with caplog.at_level(logging.INFO, logger="fathom.worker.worker"):
        assert answers(tiny("gemma3"), cudagraph_capture_sizes=SIZES) == eager
    assert asked == [70 + 4 * 3 + 10 + 3 * 1]
    lines = [record.getMessage() for record in caplog.records]
    assert "memory of cpu:" in lines
    assert lines[-1].endswith(" GiB: 4 sizes of decodes, 5 of mixed batches")


def test_the_stand_in_freezes_what_python_has_read(
    tiny: Callable[[str], Path], capture: FakeCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention that looks at lengths on the host has those of the capture for ever, and answers are wrong."""
    eager = answers(tiny("llama-gqa"), enforce_eager=True)
    monkeypatch.setattr(attention_ref, "paged_attention", plain_attention)
    assert answers(tiny("llama-gqa"), cudagraph_capture_sizes=SIZES) != eager
