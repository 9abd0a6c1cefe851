"""ModelRunner: what the model is given for a mixed step, and what becomes of its logits."""

from __future__ import annotations

import numpy as np
import torch

from fathom.config import EngineConfig
from fathom.kernels import native
from fathom.kv_cache_spec import KVCacheConfig, KVCacheGroup, LayerKVSpec
from fathom.sampling_params import SamplingParams
from fathom.step import NewRequestData, SchedulerOutput
from fathom.worker.device import make_device
from fathom.worker.model_runner import ModelRunner
from fathom.worker.sample.interface import LogitsProcessorContext
from fathom.worker.sample.sampler import Sampler

VOCAB = 50
SPECS = [LayerKVSpec(1, 2, "float32"), LayerKVSpec(1, 2, "float32", window=6)]
KV = KVCacheConfig(32, 4, 1, (KVCacheGroup((0,)), KVCacheGroup((1,), window=6)), 0)


class EchoModel(torch.nn.Module):
    """A model whose hidden state is the token and whose best next token is the token plus one; keeps its inputs."""

    def forward(self, input_ids, positions, batch):
        self.input_ids, self.positions, self.batch = input_ids, positions, batch
        return input_ids[:, None].float()

    def compute_logits(self, hidden):
        self.num_logits_rows = hidden.shape[0]
        return torch.nn.functional.one_hot((hidden[:, 0].long() + 1) % VOCAB, VOCAB).float()


def make_runner() -> tuple[ModelRunner, EchoModel]:
    device = make_device(EngineConfig.from_options(device="cpu"))
    sampler = Sampler(LogitsProcessorContext(VOCAB, 8), device.torch_device)
    model = EchoModel()
    return ModelRunner(
        model, sampler, device, SPECS, KV, 8, 64, 64, "raw_logprobs", use_graphs=native.cpu is not None
    ), model


def new(request_id: str, tokens: list[int], blocks: tuple[list[int], list[int]], computed: int = 0) -> NewRequestData:
    params = SamplingParams(temperature=0.0)
    return NewRequestData(request_id, np.array(tokens, np.int32), len(tokens), computed, blocks, params, 0, 0)


def step(scheduled: dict[str, int], add=(), blocks=None, drop=()) -> SchedulerOutput:
    return SchedulerOutput(scheduled, sum(scheduled.values()), list(add), blocks or {}, list(drop), 0, 0)


def test_a_mixed_step_is_one_flat_batch() -> None:
    runner, model = make_runner()
    decoding = new("a", [10, 11, 12, 13], ([3], [4]))
    runner.execute_model(step({"a": 4}, [decoding]))
    assert runner.sample_tokens().sampled_token_ids == {"a": 14}

    whole = new("b", [20, 21, 22, 23, 24, 25], ([7, 5], [0, 6]), computed=4)  # 4 tokens cached
    chunk = new("c", [30, 31, 32, 33, 34], ([8], [9]))
    runner.execute_model(step({"a": 1, "b": 2, "c": 3}, [whole, chunk], {"a": ([1], [2])}))
    assert model.input_ids.tolist() == [14, 24, 25, 30, 31, 32]
    assert model.positions.tolist() == [4, 4, 5, 0, 1, 2]
    batch = model.batch
    assert batch.query_start_loc.tolist() == [0, 1, 3, 6]
    assert batch.seq_lens.tolist() == [5, 6, 3]
    full, sliding = batch.tables
    assert full.block_table[:, :2].tolist() == [[3, 1], [7, 5], [8, 0]]
    assert full.slot_mapping.tolist() == [1 * 4 + 0, 5 * 4 + 0, 5 * 4 + 1, 8 * 4 + 0, 8 * 4 + 1, 8 * 4 + 2]
    assert sliding.slot_mapping.tolist() == [2 * 4, 6 * 4, 6 * 4 + 1, 9 * 4, 9 * 4 + 1, 9 * 4 + 2]
    # Only complete rows are projected: c's prompt has two tokens to go.
    assert model.num_logits_rows == 2
    output = runner.sample_tokens()
    assert output.sampled_token_ids == {"a": 15, "b": 26}

    runner.execute_model(step({"b": 1, "c": 2}, drop=["a"], blocks={"c": ([10], [11])}))
    assert runner.batch.request_ids == ["c", "b"]  # the last row moved into a's place
    assert model.input_ids.tolist() == [33, 34, 26]
    assert model.positions.tolist() == [3, 4, 6]
    assert runner.sample_tokens().sampled_token_ids == {"b": 27, "c": 35}


def test_layers_of_two_groups_share_a_tensor_of_the_pool() -> None:
    runner, _ = make_runner()
    assert runner.kv_caches[0].keys.shape == (32, 1, 2, 4)
    assert runner.kv_caches[0].values.shape == (32, 1, 4, 2)
    assert runner.kv_caches[0].keys.data_ptr() == runner.kv_caches[1].keys.data_ptr()


def test_a_running_row_that_is_not_scheduled_is_left_alone() -> None:
    runner, model = make_runner()
    runner.execute_model(step({"a": 1, "b": 1}, [new("a", [1], ([1], [2])), new("b", [5], ([3], [4]))]))
    runner.sample_tokens()
    runner.execute_model(step({"b": 1}))
    assert model.input_ids.tolist() == [6]
    assert runner.sample_tokens().sampled_token_ids == {"b": 7}
    runner.execute_model(step({"a": 1, "b": 1}))
    assert model.input_ids.tolist() == [2, 7]


def test_bfloat16_logits_are_sampled_in_float32() -> None:
    runner, model = make_runner()
    logits_of = model.compute_logits
    model.compute_logits = lambda hidden: logits_of(hidden).to(torch.bfloat16)
    runner.execute_model(step({"a": 2, "b": 1}, [new("a", [1, 2], ([1], [2])), new("b", [40], ([3], [4]))]))
    assert runner.sample_tokens().sampled_token_ids == {"a": 3, "b": 41}
