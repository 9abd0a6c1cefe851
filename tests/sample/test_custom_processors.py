"""Custom processors: both interfaces, their place in the order, and failures that stay with their requests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fathom.sampling_params import SamplingParams
from fathom.worker.sample.interface import (
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitsProcessor,
    LogitsProcessorContext,
    MoveDirectionality,
    RequestLogitsProcessor,
)
from tests.sample.helpers import CPU, GREEDY, context, make_sampler, random_logits, run

VOCAB = 8


def wanting(token: int | None, **fields: object) -> SamplingParams:
    extra = None if token is None else {"token": token}
    return SamplingParams(extra_args=extra, **fields)  # type: ignore[arg-type]


class OneToken(LogitsProcessor):
    """Whole batch: leaves only extra_args["token"], written against vLLM's V1 interface."""

    def __init__(self, vllm_config: LogitsProcessorContext, device: torch.device, is_pin_memory: bool) -> None:
        self.tokens: dict[int, int] = {}
        self.updates: list[BatchUpdate | None] = []

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        token = (params.extra_args or {}).get("token")
        if token is not None and not isinstance(token, int):
            raise ValueError(f"extra_args['token'] must be an int, got {token!r}")

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        self.updates.append(batch_update)
        for row in batch_update.removed if batch_update else ():
            self.tokens.pop(row, None)
        for row, params, _, _ in batch_update.added if batch_update else ():
            self.tokens.pop(row, None)
            if params.extra_args:
                self.tokens[row] = params.extra_args["token"]
        for source, target, direction in batch_update.moved if batch_update else ():
            a, b = self.tokens.pop(source, None), self.tokens.pop(target, None)
            if a is not None:
                self.tokens[target] = a
            if b is not None and direction is MoveDirectionality.SWAP:
                self.tokens[source] = b

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        result = torch.full_like(logits, -torch.inf)
        for row in range(len(logits)):
            token = self.tokens.get(row)
            keep = slice(None) if token is None else token
            result[row, keep] = logits[row, keep]
        return result


def one_token() -> OneToken:
    return OneToken(context(VOCAB), CPU, False)


class PerRequest(AdapterLogitsProcessor):
    """One callable per request: extra_args["token"] picks from FUNCTIONS."""

    invariant = False

    def is_argmax_invariant(self) -> bool:
        return self.invariant

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        return FUNCTIONS[params.extra_args["token"]] if params.extra_args else None


def force_next(output_ids: list[int], logits_row: torch.Tensor) -> torch.Tensor:
    logits_row[(output_ids[-1] + 1 if output_ids else 0) % VOCAB] = 100.0
    return logits_row


def force_last_of_prompt(prompt_ids: list[int], output_ids: list[int], logits_row: torch.Tensor) -> torch.Tensor:
    result = torch.zeros_like(logits_row)
    result[prompt_ids[-1]] = 1.0
    return result


def fail(output_ids: list[int], logits_row: torch.Tensor) -> torch.Tensor:
    logits_row.fill_(float("nan"))
    raise RuntimeError("boom")


def wrong_shape(output_ids: list[int], logits_row: torch.Tensor) -> torch.Tensor:
    return logits_row[:3]


def no_tensor(output_ids: list[int], logits_row: torch.Tensor) -> None:
    return None


FUNCTIONS: list[Callable[..., object]] = [force_next, force_last_of_prompt, fail, wrong_shape, no_tensor]


def per_request() -> PerRequest:
    return PerRequest(context(VOCAB), CPU, False)


def test_whole_batch_processor() -> None:
    params = [wanting(3, temperature=0.0), wanting(None), wanting(5)]
    sampler = make_sampler(params, VOCAB, custom=[one_token()])
    assert run(sampler, random_logits(3, VOCAB), [0.5, 0.0, 0.5]).token_ids.tolist() == [3, 0, 5]


def test_update_state_is_called_every_step() -> None:
    processor = one_token()
    sampler = make_sampler([GREEDY], VOCAB, custom=[processor])
    sampler.update_state(None)
    assert [update is None for update in processor.updates] == [False, True]


def test_adapter_with_two_and_three_parameters() -> None:
    outputs: list[list[int]] = [[], [], []]
    params = [wanting(0), wanting(1, temperature=0.0), wanting(None, temperature=0.0)]
    sampler = make_sampler(params, VOCAB, prompts=[[1], [2, 6], [3]], outputs=outputs, custom=[per_request()])
    logits = torch.zeros(3, VOCAB)
    logits[:, 4] = 0.5
    for _ in range(3):
        sampler.update_state(None)
        for output, token in zip(outputs, run(sampler, logits).token_ids.tolist(), strict=True):
            output.append(token)
    assert outputs == [[0, 1, 2], [6, 6, 6], [4, 4, 4]]


def test_custom_processors_see_masks_and_bias_but_no_penalty() -> None:
    seen: list[torch.Tensor] = []

    class Spy(OneToken):
        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            seen.append(logits.clone())
            return logits

    params = SamplingParams(temperature=0.5, allowed_token_ids=[1, 2], logit_bias={1: 3.0}, presence_penalty=2.0)
    run(make_sampler([params], VOCAB, outputs=[[1]], custom=[Spy(context(VOCAB), CPU, False)]), torch.ones(1, VOCAB))
    inf = float("inf")
    assert seen[0][0].tolist() == [-inf, 4.0, 1.0, -inf, -inf, -inf, -inf, -inf]


def test_rows_that_sample_nothing_hold_token_0_and_nothing_else() -> None:
    seen: list[torch.Tensor] = []

    class Spy(OneToken):
        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            seen.append(logits.clone())
            return logits

    logits = random_logits(3, VOCAB)
    logits[2, 3] = float("nan")
    sampler = make_sampler([GREEDY] * 3, VOCAB, custom=[Spy(context(VOCAB), CPU, False)])
    run(sampler, logits, active=[True, False, True])
    assert torch.equal(seen[0][0], logits[0])
    for row in (1, 2):
        assert seen[0][row].tolist() == [0.0, *[-float("inf")] * (VOCAB - 1)]


def test_argmax_invariant_processors_are_skipped_by_an_all_greedy_batch() -> None:
    calls = 0

    class Invariant(OneToken):
        def is_argmax_invariant(self) -> bool:
            return True

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return logits

    processor = Invariant(context(VOCAB), CPU, False)
    run(make_sampler([GREEDY, GREEDY], VOCAB, custom=[processor]), random_logits(2, VOCAB))
    assert calls == 0
    run(make_sampler([GREEDY, SamplingParams()], VOCAB, custom=[processor]), random_logits(2, VOCAB))
    assert calls == 1


@pytest.mark.parametrize(("function", "complaint"), [(2, "boom"), (3, "shape (8,), got (3,)"), (4, "got NoneType")])
def test_a_failing_callable_fails_its_request_alone(function: int, complaint: str) -> None:
    params = [wanting(None), wanting(function), wanting(0)]
    output = run(make_sampler(params, VOCAB, custom=[per_request()]), random_logits(3, VOCAB))
    assert list(output.errors) == [1]
    assert "PerRequest" in output.errors[1]
    assert complaint in output.errors[1]
    assert output.token_ids[1] == -1
    assert output.token_ids[2] == 0


def test_a_callable_that_cannot_be_made_fails_its_request_even_after_a_move() -> None:
    sampler = make_sampler([wanting(99), GREEDY], VOCAB, custom=[per_request()])
    sampler.update_state(BatchUpdate(2, moved=[(0, 1, MoveDirectionality.SWAP)]))
    output = run(sampler, random_logits(2, VOCAB))
    assert list(output.errors) == [1]
    assert "IndexError" in output.errors[1]


def test_a_failing_callable_of_an_inactive_row_is_no_error() -> None:
    output = run(
        make_sampler([wanting(2), GREEDY], VOCAB, custom=[per_request()]),
        random_logits(2, VOCAB),
        active=[False, True],
    )
    assert output.errors == {}


def test_refused_params_fail_their_request_and_the_processor_never_sees_it() -> None:
    processor = one_token()
    params = [wanting(None), SamplingParams(extra_args={"token": "x"}), wanting(5)]
    sampler = make_sampler(params, VOCAB, custom=[processor])
    sampler.update_state(BatchUpdate(3, moved=[(1, 2, MoveDirectionality.SWAP)]))
    for _ in range(2):
        output = run(sampler, random_logits(3, VOCAB))
        assert list(output.errors) == [2]
        assert "must be an int, got 'x'" in output.errors[2]
        assert output.token_ids[1] == 5
    sampler.update_state(BatchUpdate(2, removed=[2]))
    assert run(sampler, random_logits(2, VOCAB)).errors == {}
    assert processor.tokens == {1: 5}


def test_a_refused_request_in_anothers_place_ends_that_ones_state() -> None:
    processor = one_token()
    sampler = make_sampler([wanting(3)], VOCAB, custom=[processor])
    sampler.update_state(BatchUpdate(1, added=[(0, SamplingParams(extra_args={"token": "x"}), [], [])]))
    assert list(run(sampler, random_logits(1, VOCAB)).errors) == [0]
    assert processor.tokens == {}


class Broken(OneToken):
    """Fails where `where` says."""

    where = ""

    def is_argmax_invariant(self) -> bool:
        return "invariant" in self.where

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        super().update_state(batch_update)
        if self.where == "update_state":
            raise KeyError("no such row")

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if "raise" in self.where:
            logits.fill_(float("nan"))
            raise RuntimeError("boom")
        if "shape" in self.where:
            return logits[:, :4]
        return super().apply(logits)


@pytest.mark.parametrize("where", ["raise", "shape", "raise invariant", "shape invariant"])
def test_a_failing_apply_fails_the_steps_requests_only(where: str) -> None:
    broken = Broken(context(VOCAB), CPU, False)
    broken.where = where
    sampler = make_sampler([SamplingParams()] * 3, VOCAB, custom=[broken])
    output = run(sampler, random_logits(3, VOCAB), active=[True, False, True])
    assert sorted(output.errors) == [0, 2]
    assert "Broken failed" in output.errors[0]
    assert output.token_ids.tolist() == [-1, -1, -1]
    broken.where = "invariant" if "invariant" in where else ""
    assert run(sampler, random_logits(3, VOCAB)).errors == {}


def test_a_failing_update_state_fails_every_request_of_the_batch_once() -> None:
    broken = Broken(context(VOCAB), CPU, False)
    broken.where = "update_state"
    sampler = make_sampler([GREEDY, GREEDY], VOCAB, custom=[broken])
    output = run(sampler, random_logits(2, VOCAB), active=[True, False])
    assert sorted(output.errors) == [0, 1]
    assert "Broken failed in update_state: KeyError" in output.errors[0]
    broken.where = ""
    sampler.update_state(BatchUpdate(1, removed=[0, 1], added=[(0, wanting(3), [], [])]))
    output = run(sampler, random_logits(1, VOCAB))
    assert output.errors == {}
    assert output.token_ids.tolist() == [3]
