"""A runner on a device that runs behind: steps go on without their tokens, which arrive with one wait each."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fathom.config import EngineConfig
from fathom.sampling_params import SamplingParams
from fathom.step import ModelRunnerOutput, NewRequestData, PendingOutput
from fathom.worker.model_runner import ModelRunner
from fathom.worker.sample.interface import LogitsProcessorContext
from fathom.worker.sample.sampler import Sampler
from tests.worker.delayed_device import DelayedDevice
from tests.worker.test_model_runner import KV, SPECS, VOCAB, EchoModel, step

GREEDY = SamplingParams(temperature=0.0)


def make_runner() -> tuple[ModelRunner, EchoModel, DelayedDevice]:
    device = DelayedDevice(EngineConfig.from_options(device="cpu"))
    sampler = Sampler(LogitsProcessorContext(VOCAB, 8), device.torch_device)
    model = EchoModel()
    runner = ModelRunner(model, sampler, device, SPECS, KV, 8, 64, 64, "raw_logprobs", use_graphs=False)
    return runner, model, device


def new(request_id: str, tokens: list[int], params: SamplingParams = GREEDY) -> NewRequestData:
    block = 1 + 2 * (ord(request_id) - ord("a"))
    return NewRequestData(request_id, np.array(tokens, np.int32), len(tokens), 0, ([block], [block + 1]), params, 0, 0)


def launch(runner: ModelRunner, *args: object, **options: object) -> PendingOutput:
    runner.execute_model(step(*args, **options))
    pending = runner.sample_tokens()
    assert isinstance(pending, PendingOutput)
    return pending


def tokens_of(pending: PendingOutput) -> dict[str, int]:
    output = pending.result()
    assert isinstance(output, ModelRunnerOutput)
    return output.sampled_token_ids


def test_steps_are_launched_on_tokens_that_the_host_does_not_know() -> None:
    runner, model, device = make_runner()
    launched = [launch(runner, {"a": 2, "b": 1, "c": 2}, [new("a", [5, 6]), new("b", [20]), new("c", [30, 31, 32])])]
    launched.append(launch(runner, {"a": 1, "b": 1, "c": 1}))
    assert device.num_waits == 0
    assert model.input_ids.tolist() == [7, 21, 32]
    assert tokens_of(launched[0]) == {"a": 7, "b": 21}
    assert device.num_waits == 1
    # b leaves, and c takes its row; d comes into a row that nobody has had.
    launched.append(launch(runner, {"a": 1, "c": 1}, drop=["b"]))
    assert model.input_ids.tolist() == [8, 33]
    assert tokens_of(launched[1]) == {"a": 8, "b": 22, "c": 33}
    launched.append(launch(runner, {"a": 1, "c": 1, "d": 1}, [new("d", [40])]))
    launched.append(launch(runner, {"c": 1, "d": 1}, drop=["a"]))
    assert model.input_ids.tolist() == [41, 35]  # d has moved to a's row
    assert [tokens_of(pending) for pending in launched[2:]] == [
        {"a": 9, "c": 34},
        {"a": 10, "c": 35, "d": 41},
        {"c": 36, "d": 42},
    ]


def test_a_step_has_one_wait_whatever_it_reports() -> None:
    runner, _, device = make_runner()
    params = SamplingParams(temperature=0.7, seed=3, logprobs=2, prompt_logprobs=1)
    first = launch(runner, {"a": 2, "b": 1}, [new("a", [5, 6, 7], params), new("b", [20])])
    second = launch(runner, {"a": 1, "b": 1})
    assert device.num_waits == 0
    assert tokens_of(first) == {"b": 21}
    output = second.result()
    assert device.num_waits == 2
    assert output.logprobs is not None
    assert output.logprobs.token_ids[output.logprobs_rows["a"], :2].tolist() == [output.sampled_token_ids["a"], 8]
    prompt = output.prompt_logprobs["a"]  # of both steps
    assert prompt.token_ids.tolist() == [[6, 6], [7, 7]]
    assert prompt.ranks.tolist() == [1, 1]
    second.result()
    assert device.num_waits == 2


@pytest.mark.parametrize(
    ("params", "waits"),
    [
        (SamplingParams(temperature=0.0, min_tokens=3, stop_token_ids=[8]), 0),
        (SamplingParams(temperature=0.0, logit_bias={3: 1.0}), 0),
        (SamplingParams(temperature=0.0, allowed_token_ids=[1, 2, 3]), 0),
        (SamplingParams(temperature=0.8, top_k=3, top_p=0.9, min_p=0.1), 0),
        (SamplingParams(temperature=0.0, repetition_penalty=1.2), 1),
        (SamplingParams(temperature=0.0, frequency_penalty=0.2), 1),
        (SamplingParams(temperature=0.0, bad_words=["x"]), 1),
    ],
    ids=str,
)
def test_only_what_looks_at_output_tokens_waits_for_them(params: SamplingParams, waits: int) -> None:
    if params.bad_words:
        params.bad_words_token_ids = [[7, 8]]
    runner, _, device = make_runner()
    launch(runner, {"a": 2}, [new("a", [5, 6], params)])
    launch(runner, {"a": 1})
    assert device.num_waits == waits


def test_logits_that_are_not_finite_fail_their_row_alone_and_later() -> None:
    runner, model, _ = make_runner()
    logits_of = model.compute_logits
    model.compute_logits = lambda hidden: torch.where(hidden == 6.0, torch.nan, logits_of(hidden))
    # Once the best token is looked for, and once something comes before that.
    for params in (GREEDY, SamplingParams(temperature=0.0, logit_bias={3: 0.1}, logprobs=1)):
        first = launch(runner, {"a": 1, "b": 1}, [new("a", [6], params), new("b", [20], params)])
        second = launch(runner, {"a": 1, "b": 1})  # the host does not know yet
        assert model.input_ids.tolist() == [0, 21]  # whatever is computed for a, it has a row in the embedding
        output = first.result()
        assert output.sampled_token_ids == {"b": 21}
        assert "not finite" in output.errors["a"]
        assert set(output.logprobs_rows) == ({"b"} if params.logprobs else set())
        assert second.result().sampled_token_ids["b"] == 22
        launch(runner, {"b": 1}, drop=["a"]).result()
        runner.sampler.update_state(runner.batch.apply(step({}, drop=["b"])))


def test_inputs_are_not_overwritten_while_the_device_may_still_read_them() -> None:
    runner, _, _ = make_runner()
    pending = [launch(runner, {"a": 2}, [new("a", [5, 6])])]
    pending += [launch(runner, {"a": 1}) for _ in range(5)]  # nobody asks for the tokens
    assert [tokens_of(one) for one in pending] == [{"a": token} for token in range(7, 13)]
