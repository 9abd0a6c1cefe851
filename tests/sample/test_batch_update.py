"""Random lives of a batch: every family must act on the row where its request is now."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fathom.sampling_params import SamplingParams
from fathom.worker.sample.interface import (
    AdapterLogitsProcessor,
    AddedRequest,
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
    MovedRequest,
    RequestLogitsProcessor,
)
from fathom.worker.sample.sampler import Sampler
from tests.sample.helpers import CPU, GREEDY, context, guarded, make_sampler, random_logits, run

VOCAB = 24
MAX_ROWS = 5


class Shift(AdapterLogitsProcessor):
    """Adds extra_args["shift"] to the logit of the last output token, or of token 0."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        if not params.extra_args:
            return None
        shift = params.extra_args["shift"]

        def add(output_ids: list[int], logits_row: torch.Tensor) -> torch.Tensor:
            logits_row[output_ids[-1] if output_ids else 0] += shift
            return logits_row

        return add


def shift() -> Shift:
    return Shift(context(VOCAB), CPU, False)


class Halve(LogitsProcessor):
    """Halves all logits of all rows, keeping nothing about them."""

    def __init__(self) -> None:
        pass

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        pass

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.mul_(0.5)


small_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    min_p=st.sampled_from([0.0, 0.1]),
    top_k=st.sampled_from([0, 3]),
    top_p=st.sampled_from([1.0, 0.6]),
    logit_bias=st.sampled_from([None, {3: 5.0}, {4: -2.0, 5: 1.0}]),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    allowed_token_ids=st.sampled_from([None, list(range(12))]),
    stop_token_ids=st.just([1]),
    min_tokens=st.sampled_from([0, 3]),
    logprobs=st.just(-1),
    extra_args=st.sampled_from([None, {"shift": 4.0}]),
    logits_processors=st.sampled_from([None, ["Shift"], ["Halve"], []]),
)


class Request:
    def __init__(self, params: SamplingParams, prompt: list[int]) -> None:
        self.params = params
        self.prompt = prompt
        self.output: list[int] = []


def change(data: st.DataObject, rows: dict[int, Request]) -> BatchUpdate | None:
    """Change the batch at random, by the definition of BatchUpdate, and say how it was changed."""
    removed = data.draw(st.lists(st.sampled_from(sorted(rows)), unique=True)) if rows else []
    for row in removed:
        del rows[row]
    added: list[AddedRequest] = []
    # Also at occupied rows, which are replaced.
    for row in data.draw(st.lists(st.integers(0, MAX_ROWS - 1), unique=True, max_size=3)):
        request = Request(data.draw(small_params), data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=3)))
        rows[row] = request
        added.append((row, request.params, request.prompt, request.output))
    moved: list[MovedRequest] = []
    if len(rows) >= 2 and data.draw(st.booleans()):
        first, second = data.draw(st.lists(st.sampled_from(sorted(rows)), min_size=2, max_size=2, unique=True))
        rows[first], rows[second] = rows[second], rows[first]
        moved.append((first, second, MoveDirectionality.SWAP))
    while rows and max(rows) >= len(rows):
        hole, last = next(i for i in range(MAX_ROWS) if i not in rows), max(rows)
        rows[hole] = rows.pop(last)
        moved.append((last, hole, MoveDirectionality.UNIDIRECTIONAL))
    if not removed and not added and not moved:
        return None
    return BatchUpdate(len(rows), removed, added, moved)


def step_of(sampler: Sampler, logits: torch.Tensor) -> tuple[np.ndarray, np.ndarray | None]:
    output = run(sampler, logits, np.linspace(0.1, 0.9, len(logits)))
    assert output.errors == {}
    return output.token_ids, None if output.logprobs is None else np.sort(output.logprobs.logprobs[:, 1:])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_long_lived_batch_equals_a_fresh_one(data: st.DataObject) -> None:
    """After any changes the sampler does what one does that has just been handed the same requests."""
    lived = Sampler(context(VOCAB, MAX_ROWS), CPU, "processed_logprobs", [guarded(shift()), guarded(Halve())])
    rows: dict[int, Request] = {}
    for step in range(data.draw(st.integers(1, 8))):
        lived.update_state(change(data, rows))
        requests = [rows[row] for row in range(len(rows))]
        if not requests:
            continue
        fresh = make_sampler(
            [r.params for r in requests],
            VOCAB,
            prompts=[r.prompt for r in requests],
            outputs=[r.output for r in requests],
            mode="processed_logprobs",
            custom=[shift(), Halve()],
        )
        logits = random_logits(len(requests), VOCAB, seed=step)
        tokens, scores = step_of(lived, logits)
        expected_tokens, expected_scores = step_of(fresh, logits)
        assert tokens.tolist() == expected_tokens.tolist()
        np.testing.assert_array_equal(scores, expected_scores)
        for request, token in zip(requests, tokens.tolist(), strict=True):
            request.output.append(token)


def biased(token: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, logit_bias={token: 50.0})


def test_removed_then_added_then_moved() -> None:
    sampler = make_sampler([biased(1), biased(2), biased(3)], VOCAB)
    logits = torch.zeros(3, VOCAB)
    assert run(sampler, logits).token_ids.tolist() == [1, 2, 3]
    sampler.update_state(
        BatchUpdate(
            3,
            removed=[0],
            added=[(0, biased(4), [], []), (3, biased(5), [], [])],
            moved=[(3, 1, MoveDirectionality.UNIDIRECTIONAL), (0, 2, MoveDirectionality.SWAP)],
        )
    )
    assert run(sampler, logits).token_ids.tolist() == [3, 5, 4]


def test_a_row_without_state_moves_as_no_state() -> None:
    sampler = make_sampler([biased(1), GREEDY, biased(3)], VOCAB)
    moves = [(0, 1, MoveDirectionality.SWAP), (0, 2, MoveDirectionality.UNIDIRECTIONAL)]
    sampler.update_state(BatchUpdate(3, added=[], moved=moves))
    logits = torch.zeros(3, VOCAB)
    assert run(sampler, logits).token_ids.tolist() == [0, 1, 0]


def test_none_changes_nothing() -> None:
    sampler = make_sampler([biased(1), biased(2)], VOCAB)
    sampler.update_state(None)
    assert run(sampler, torch.zeros(2, VOCAB)).token_ids.tolist() == [1, 2]
