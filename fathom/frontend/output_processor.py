"""OutputProcessor: from sampled tokens to RequestOutputs. Lives in the caller's process.

It owns a RequestState for each answer under way: text so far, logprobs so far, times. A stop string is found
here, on the text, so the engine is then told to abort the request: `process_outputs` says which.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from fathom.errors import ValidationError
from fathom.frontend.detokenizer import IncrementalDetokenizer, NoDetokenizer
from fathom.frontend.input_processor import ProcessedRequest
from fathom.frontend.logprobs import LogprobsProcessor, prompt_positions
from fathom.frontend.parallel_sampling import ParentRequest
from fathom.frontend.stats import EngineObserver
from fathom.frontend.tokenizer.tokenizer import Tokenizer
from fathom.outputs import CompletionOutput, PositionLogprobs, RequestMetrics, RequestOutput
from fathom.sampling_params import RequestOutputKind
from fathom.wire.messages import EngineCoreOutput, EngineCoreOutputs, FinishReason


@dataclass(slots=True)
class RequestState:
    """One answer under way. A request with n > 1 has n of these, with a common parent."""

    request: ProcessedRequest
    index: int
    parent: ParentRequest | None
    detokenizer: IncrementalDetokenizer | NoDetokenizer
    logprobs: LogprobsProcessor | None
    metrics: RequestMetrics
    token_ids: list[int] = field(default_factory=list)
    num_shown: int = 0  # tokens that earlier deltas have given out
    prompt_logprobs: PositionLogprobs | None = None
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None


@dataclass(slots=True)
class ProcessedOutputs:
    """request_outputs: what callers get. to_abort: ids that ended on a stop string and still run in the engine."""

    request_outputs: list[RequestOutput]
    to_abort: list[str]


class OutputProcessor:
    """Owns the states of all answers under way, by the id of the engine's request; tells an observer about them."""

    def __init__(self, tokenizer: Tokenizer | None, observer: EngineObserver | None = None) -> None:
        self._observer = observer or EngineObserver()
        self._tokenizer = tokenizer
        self._decode = tokenizer.token_strings if tokenizer is not None else None
        self._states: dict[str, RequestState] = {}
        self._parents: dict[str, ParentRequest] = {}

    def add_requests(self, requests: Sequence[ProcessedRequest]) -> list[list[str]]:
        """Open requests; returns for each the ids of the engine's requests, one for each answer.

        Raises:
            ValidationError: an id is in use; then none of them is opened.
        """
        parents = [
            ParentRequest(request.request_id, request.params.n) if request.params.n > 1 else None
            for request in requests
        ]
        engine_ids = [
            [request.request_id] if parent is None else parent.child_ids
            for request, parent in zip(requests, parents, strict=True)
        ]
        self._check_unused([request.request_id for request in requests], engine_ids)
        for request, parent, ids in zip(requests, parents, engine_ids, strict=True):
            if parent is not None:
                self._parents[request.request_id] = parent
            for index, engine_id in enumerate(ids):
                self._open(engine_id, request, index, parent)
        return engine_ids

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._states or request_id in self._parents

    @property
    def num_unfinished(self) -> int:
        """Answers under way."""
        return len(self._states)

    def unfinished_ids(self) -> list[str]:
        """Ids of the requests under way, as their callers know them."""
        return list(dict.fromkeys(state.request.request_id for state in self._states.values()))

    def abort(self, request_ids: list[str], stop_reason: str | None = None) -> tuple[list[str], list[RequestOutput]]:
        """End requests from this side, for a reason; returns the engine's ids to abort, and their last outputs."""
        engine_ids: list[str] = []
        outputs: list[RequestOutput] = []
        for request_id in request_ids:
            parent = self._parents.get(request_id)
            for engine_id in parent.child_ids if parent is not None else [request_id]:
                state = self._states.get(engine_id)
                if state is None:
                    continue
                engine_ids.append(engine_id)
                state.finish_reason, state.stop_reason = FinishReason.ABORT, stop_reason
                state.detokenizer.update([], finished=True)
                output = self._make_output(engine_id, state)
                if output is not None:
                    outputs.append(output)
                self._close(engine_id, state)
        return engine_ids, outputs

    def process_outputs(self, step: EngineCoreOutputs) -> ProcessedOutputs:
        """Take in one step's outputs."""
        result = ProcessedOutputs([], [])
        for output in step.outputs:
            state = self._states.get(output.request_id)
            if state is None:  # aborted on this side, with outputs still on their way
                continue
            self._update(state, output, step)
            self._tell(output.request_id, state, output.finish_reason, result)
        for request_id, token_ids in step.tokens.items():
            state = self._states.get(request_id)
            if state is not None:
                self._add_tokens(state, token_ids, None)
                self._tell(request_id, state, None, result)
        return result

    def _tell(
        self, engine_id: str, state: RequestState, engine_finish: FinishReason | None, result: ProcessedOutputs
    ) -> None:
        """Add what is to be told of one answer that has been updated. engine_finish: why the engine has ended it."""
        if state.finish_reason is not None and engine_finish is None:
            result.to_abort.append(engine_id)
        request_output = self._make_output(engine_id, state)
        if request_output is not None:
            result.request_outputs.append(request_output)
        if state.finish_reason is not None:
            self._close(engine_id, state)

    def _check_unused(self, request_ids: list[str], engine_ids: list[list[str]]) -> None:
        uses = Counter(
            name for request_id, ids in zip(request_ids, engine_ids, strict=True) for name in {request_id, *ids}
        )
        taken = [name for name, count in uses.items() if count > 1 or name in self]
        if taken:
            name = min(taken)
            raise ValidationError(f"request id {name!r} is in use.", parameter="request_id", value=name)

    def _open(self, engine_id: str, request: ProcessedRequest, index: int, parent: ParentRequest | None) -> None:
        params = request.params
        self._states[engine_id] = RequestState(
            request=request,
            index=index,
            parent=parent,
            detokenizer=IncrementalDetokenizer.create(self._tokenizer, params, request.prompt_token_ids),
            logprobs=None if params.logprobs is None else LogprobsProcessor(params.logprobs, self._decode),
            metrics=RequestMetrics(arrival_time=request.arrival_time),
        )

    def _close(self, engine_id: str, state: RequestState) -> None:
        del self._states[engine_id]
        self._observer.finished(state)
        if state.parent is not None and state.parent.finished:
            del self._parents[state.parent.request_id]

    def _update(self, state: RequestState, output: EngineCoreOutput, step: EngineCoreOutputs) -> None:
        """Take in all that an output tells of one answer."""
        state.num_cached_tokens = output.num_cached_tokens
        state.finish_reason = output.finish_reason
        state.stop_reason = output.stop_reason
        state.error = output.error
        if output.logprobs_row >= 0 and state.logprobs is not None and step.logprobs is not None:
            state.logprobs.positions.append(step.logprobs, output.logprobs_row, len(output.new_token_ids))
        if state.request.params.prompt_logprobs is not None and state.prompt_logprobs is None:
            state.prompt_logprobs = prompt_positions(output.prompt_logprobs, self._decode)
        state.metrics.scheduled_time = output.scheduled_time
        state.metrics.num_preemptions = output.num_preemptions
        self._add_tokens(state, output.new_token_ids, output.finish_reason)

    def _add_tokens(self, state: RequestState, token_ids: list[int], engine_finish: FinishReason | None) -> None:
        """Tokens, text and times of one answer; finds stop strings."""
        metrics = state.metrics
        previous, num_before = metrics.last_token_time, len(state.token_ids)
        if token_ids:
            now = time.time()
            metrics.first_token_time = metrics.first_token_time or now
            metrics.last_token_time = now
        state.token_ids += token_ids
        stop = state.detokenizer.update(
            token_ids,
            finished=engine_finish is not None,
            stop_terminated=engine_finish is FinishReason.STOP,
        )
        if stop is not None:
            state.finish_reason, state.stop_reason = FinishReason.STOP, stop
            del state.token_ids[state.detokenizer.num_tokens :]
        metrics.num_generation_tokens = len(state.token_ids)
        num_new = len(state.token_ids) - num_before
        if num_new:
            gap_s = metrics.last_token_time - previous if previous else None
            self._observer.tokens(state, num_new, gap_s)

    def _make_output(self, engine_id: str, state: RequestState) -> RequestOutput | None:
        """What the caller is told now, if anything."""
        kind = state.request.params.output_kind
        finished = state.finish_reason is not None
        if kind is RequestOutputKind.FINAL_ONLY and not finished:
            return None
        completion = _completion(state, delta=kind is RequestOutputKind.DELTA)
        parent = state.parent
        outputs = [completion]
        num_cached_tokens: int | None = state.num_cached_tokens
        if parent is not None:
            if finished:
                parent.finish(engine_id, completion, state.num_cached_tokens)
            finished = parent.finished
            if kind is RequestOutputKind.FINAL_ONLY:
                if not finished:
                    return None
                outputs, num_cached_tokens = parent.outputs, parent.num_cached_tokens
        return RequestOutput(
            request_id=state.request.request_id,
            prompt=state.request.prompt,
            prompt_token_ids=state.request.prompt_token_ids,
            outputs=outputs,
            finished=finished,
            prompt_logprobs=state.prompt_logprobs,
            num_cached_tokens=num_cached_tokens,
            metrics=state.metrics.copy(),
        )


def _completion(state: RequestState, *, delta: bool) -> CompletionOutput:
    """The answer so far, or what is new of it."""
    start = state.num_shown if delta else 0
    state.num_shown = len(state.token_ids)
    logprobs = state.logprobs
    positions = cumulative = None
    if logprobs is not None:
        positions = logprobs.positions.span(start, len(state.token_ids))
        cumulative = logprobs.cumulative(len(state.token_ids))
    return CompletionOutput(
        index=state.index,
        text=state.detokenizer.take_delta() if delta else state.detokenizer.text,
        token_ids=state.token_ids[start:],
        cumulative_logprob=cumulative,
        logprobs=positions,
        finish_reason=None if state.finish_reason is None else str(state.finish_reason),
        stop_reason=state.stop_reason,
        error=state.error,
    )
