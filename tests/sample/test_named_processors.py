"""Requests that name their processors: the others neither hear of them nor change their logits, wherever the row is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from fathom.sampling_params import SamplingParams
from fathom.worker.sample.interface import (
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
    RequestLogitsProcessor,
)
from tests.sample.helpers import CPU, context, make_sampler, random_logits, run

VOCAB = 8


def naming(names: list[str] | None, temperature: float = 0.0) -> SamplingParams:
    return SamplingParams(temperature=temperature, logits_processors=names, logprobs=-1, seed=1)


class Always(LogitsProcessor):
    """Adds 100 to a token of every row; may fail, and then leaves something else in the logits."""

    token = 3
    fails_in = ""

    def __init__(self) -> None:
        self.rows: set[int] = set()
        self.applied = 0

    def is_argmax_invariant(self) -> bool:
        return False

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        if cls.fails_in == "validate_params":
            raise ValueError("I refuse")

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is not None:
            self.rows -= set(batch_update.removed)
            self.rows |= {row for row, *_ in batch_update.added}
        if self.fails_in == "update_state":
            raise KeyError("no such row")

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        self.applied += 1
        logits[:, self.token] += 100.0
        if self.fails_in == "apply":
            raise RuntimeError("boom")
        return logits


class Invariant(Always):
    """One that runs late, and returns something that cannot be written to."""

    def is_argmax_invariant(self) -> bool:
        return True

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        self.applied += 1
        row = torch.full((1, VOCAB), -100.0)
        row[0, self.token] = 0.0
        return row.expand(len(logits), VOCAB)


class PerRequest(AdapterLogitsProcessor):
    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor:
        return only_five


def only_five(output_ids: list[int], logits_row: torch.Tensor) -> torch.Tensor:
    return torch.zeros(VOCAB).index_fill_(0, torch.tensor([5]), 1000.0)


def logits_of(params: Sequence[SamplingParams], logits: torch.Tensor, *custom: LogitsProcessor) -> list[list[float]]:
    """What each row was sampled from, by token id."""
    output = run(make_sampler(params, VOCAB, mode="processed_logits", custom=custom), logits)
    assert output.errors == {}
    assert output.logprobs is not None
    ids, scores = torch.from_numpy(output.logprobs.token_ids[:, 1:]), torch.from_numpy(output.logprobs.logprobs[:, 1:])
    return torch.zeros(len(params), VOCAB).scatter_(1, ids.long(), scores).tolist()


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("late", [False, True])
def test_each_row_gets_the_processors_that_it_names(late: bool, temperature: float) -> None:
    always = Invariant if late else Always
    names = [None, [], ["PerRequest"], [always.__name__], ["PerRequest", always.__name__]]
    params, logits = [naming(item, temperature) for item in names], random_logits(5, VOCAB)
    found = logits_of(params, logits, always(), PerRequest(context(VOCAB), CPU, False))
    for row, item in enumerate(names):
        alone: list[LogitsProcessor] = []
        if item is None or always.__name__ in item:
            alone.append(always())
        if item is None or "PerRequest" in item:
            alone.append(PerRequest(context(VOCAB), CPU, False))
        assert found[row] == logits_of([naming(None, temperature)], logits[row : row + 1], *alone)[0]


def test_a_row_is_left_alone_wherever_it_moves() -> None:
    always = Always()
    logits = random_logits(3, VOCAB)
    best = logits.argmax(dim=1).tolist()
    assert Always.token not in best
    sampler = make_sampler([naming([]), naming(None), naming(["Always"])], VOCAB, custom=[always])
    assert run(sampler, logits).token_ids.tolist() == [best[0], 3, 3]
    assert always.rows == {1, 2}
    sampler.update_state(BatchUpdate(3, moved=[(0, 2, MoveDirectionality.SWAP)]))
    assert run(sampler, logits).token_ids.tolist() == [3, 3, best[2]]
    sampler.update_state(BatchUpdate(2, removed=[0], moved=[(2, 0, MoveDirectionality.UNIDIRECTIONAL)]))
    assert run(sampler, logits[:2]).token_ids.tolist() == [best[0], 3]
    sampler.update_state(BatchUpdate(2, added=[(0, naming(None), [], []), (1, naming([]), [], [])]))
    assert run(sampler, logits[:2]).token_ids.tolist() == [3, best[1]]


def test_a_processor_that_nobody_wants_is_not_asked() -> None:
    always = Always()
    sampler = make_sampler([naming([]), naming(["Other"])], VOCAB, custom=[always])
    assert not sampler.reads_output
    run(sampler, random_logits(2, VOCAB))
    assert (always.applied, always.rows) == (0, set())


@pytest.mark.parametrize("where", ["validate_params", "update_state", "apply"])
def test_its_failures_are_not_those_of_requests_that_it_is_not_for(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Always, "fails_in", where)
    logits = random_logits(3, VOCAB)
    output = run(make_sampler([naming([]), naming(None), naming(["Other"])], VOCAB, custom=[Always()]), logits)
    assert list(output.errors) == [1]
    best = logits.argmax(dim=1).tolist()
    assert output.token_ids.tolist() == [best[0], -1, best[2]]
    assert run(make_sampler([naming([])] * 3, VOCAB, custom=[Always()]), logits).errors == {}
