"""An engine runs a workload, so many requests at a time, and this notes when each request's tokens came."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import msgspec
from tqdm import tqdm

from fathom.entrypoints.cli.bench.workload import Workload, make_workload
from fathom.entrypoints.cli.engine_flags import config_from_flags
from fathom.errors import RequestFailedError
from fathom.frontend.engine import LLMEngine
from fathom.outputs import RequestOutput
from fathom.sampling_params import RequestOutputKind, SamplingParams

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)


@dataclass(frozen=True)
class RequestTimes:
    """Seconds from submission to the first token, and from the first to the last. num_cached: prompt tokens reused."""

    first_token: float
    decoding: float
    num_output: int
    num_cached: int

    @property
    def per_token(self) -> float:
        """Seconds for each token after the first."""
        return self.decoding / max(1, self.num_output - 1)


@dataclass(frozen=True)
class Run:
    """seconds: from the first submission to the last token. requests: in the workload's order."""

    seconds: float
    requests: list[RequestTimes]


class Bench:
    """An engine and a progress bar of requests."""

    def __init__(self, engine: LLMEngine, bar: tqdm) -> None:
        self.engine = engine
        self._bar = bar
        self._numbers = count()

    def make_workload(self, num_prompts: int, input_len: int, output_len: int, **more: Any) -> Workload:
        """As workload.make_workload, by the engine's seed, of tokens that its model has and that its context holds."""
        model, vocab_size = self.engine.config.model, self.engine.model_config.vocab_size
        workload = make_workload(
            num_prompts, input_len, output_len, vocab_size=vocab_size, seed=model.seed or 0, **more
        )
        return workload.check_fits(model.max_model_len or 0)

    def expect(self, num_requests: int) -> None:
        """Tell the bar how many requests will come."""
        self._bar.reset(num_requests)

    def run(
        self,
        workload: Workload,
        params: SamplingParams = GREEDY,
        *,
        concurrency: int | None = None,
        cache_salts: Sequence[str] | None = None,
        keep_cache: bool = False,
    ) -> Run:
        """Answer all requests.

        Args:
            concurrency: requests under way at once: when one ends, the next is submitted. None: all at once.
            cache_salts: one for each request; requests with different salts share nothing.
            keep_cache: leave the prefix cache as it is; otherwise it is emptied before the clock starts.

        Raises:
            RequestFailedError: a request failed, or its answer has not the length that was asked for.
        """
        if not keep_cache:
            self.engine.reset_prefix_cache()
        ids = [f"bench-{next(self._numbers)}" for _ in workload.prompts]
        salts: Sequence[str | None] = cache_salts or [None] * len(ids)
        prompts = [
            {"prompt_token_ids": prompt, "cache_salt": salt}
            for prompt, salt in zip(workload.prompts, salts, strict=True)
        ]
        lengths = [msgspec.structs.replace(params, max_tokens=length) for length in workload.output_lens]
        waiting = iter(range(len(ids)))
        times: dict[str, RequestTimes] = {}

        def submit(indices: Sequence[int]) -> None:
            if indices:
                self.engine.add_requests(
                    [ids[i] for i in indices], [prompts[i] for i in indices], [lengths[i] for i in indices]
                )

        start = time.perf_counter()
        submit(list(islice(waiting, concurrency)))
        while self.engine.has_unfinished_requests():
            finished = self.engine.step()
            submit(list(islice(waiting, len(finished))))
            for output in finished:
                times[output.request_id] = _times(output)
                self._bar.update()
        run = Run(time.perf_counter() - start, [times[request_id] for request_id in ids])
        _check_lengths(workload, run)
        return run


@contextmanager
def open_bench(options: argparse.Namespace, **changes: Any) -> Iterator[Bench]:
    """An engine as the flags describe it, with some options changed; shut down in the end."""
    config = config_from_flags(options)
    config = config.replace(seed=seed_of(options), **changes)
    shown = config.runtime.show_progress
    with (
        LLMEngine(config) as engine,
        tqdm(desc=options.benchmark, unit="req", dynamic_ncols=True, disable=not shown) as bar,
    ):
        yield Bench(engine, bar)


def seed_of(options: argparse.Namespace) -> int:
    """Of the workload, and of the engine: --seed, or 0."""
    return config_from_flags(options).model.seed or 0


def _times(output: RequestOutput) -> RequestTimes:
    (answer,) = output.outputs
    if answer.error is not None:
        raise RequestFailedError(answer.error)
    metrics = output.metrics
    assert metrics is not None, "a finished request has its times"
    return RequestTimes(
        metrics.first_token_time - metrics.arrival_time,
        metrics.last_token_time - metrics.first_token_time,
        len(answer.token_ids),
        output.num_cached_tokens or 0,
    )


def _check_lengths(workload: Workload, run: Run) -> None:
    for request, wanted in zip(run.requests, workload.output_lens, strict=True):
        if request.num_output != wanted:
            raise RequestFailedError(f"an answer has {request.num_output} tokens instead of {wanted}.")
