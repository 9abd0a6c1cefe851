"""The interface of logits processors: the built-in ones and yours.

The worker keeps a persistent batch: a row belongs to one request until that request leaves. Between steps
rows are removed, added and moved, and a `BatchUpdate` tells every processor so; a processor keeps whatever
state it needs per row and follows. Names and call order are those of vLLM's V1 interface, so a class written
for that needs only its imports changed.

There are two ways in:

    LogitsProcessor         one `apply` for the whole batch: vectorised, keeps its own state per row
    AdapterLogitsProcessor  one plain callable per request: the base class does the rest
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fathom.sampling_params import SamplingParams
from fathom.worker.sample.batch_update import AddedRequest, BatchUpdate, MoveDirectionality, MovedRequest
from fathom.worker.sample.rows import RowStates

if TYPE_CHECKING:
    from fathom.config import EngineConfig

__all__ = [
    "AdapterLogitsProcessor",
    "AddedRequest",
    "BatchUpdate",
    "LogitsProcessor",
    "LogitsProcessorContext",
    "MoveDirectionality",
    "MovedRequest",
    "RequestLogitsProcessor",
]


@dataclass(frozen=True, slots=True)
class LogitsProcessorContext:
    """What a processor is constructed with: the sizes that bound its state, and the engine's whole config.

    vocab_size: columns of the logits. max_num_seqs: most rows a batch can have.
    """

    vocab_size: int
    max_num_seqs: int
    config: EngineConfig | None = None


class LogitsProcessor(ABC):
    """Changes the logits of some rows of the batch.

    One instance lives in each worker. In each step `update_state` is called once, then `apply`.
    """

    @abstractmethod
    def __init__(self, context: LogitsProcessorContext, device: torch.device, is_pin_memory: bool) -> None:
        """
        Args:
            context: sizes and configuration.
            device: where the logits live.
            is_pin_memory: whether pinned host memory is of use for copies to that device.
        """

    @classmethod  # noqa: B027 (there is something to override, not something to implement)
    def validate_params(cls, params: SamplingParams) -> None:
        """Raise ValueError to refuse a request with these parameters; it then fails alone."""

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """True if `apply` never changes which token of a row is the best.

        Such a processor runs after temperature and is skipped while every request is greedy. Asked once.
        """

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the batch's rows. None means that no row was added, removed or moved since the last step."""

    @abstractmethod
    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the processed logits; changing the argument in place and returning it is fine.

        Args:
            logits: [num_rows, vocab_size] float32. A row that samples no token in this
                step (its prompt is not complete yet) has 0 for token 0 and -inf for the others.
        """


RequestLogitsProcessor = Callable[..., torch.Tensor]
"""(output_ids, logits_row) -> logits_row, or (prompt_ids, output_ids, logits_row) -> logits_row."""


class AdapterLogitsProcessor(LogitsProcessor):
    """A LogitsProcessor made of one callable per request; subclasses say which callable.

    A callable that raises, or that returns something other than a row of logits, fails its own request only.
    """

    def __init__(self, context: LogitsProcessorContext, device: torch.device, is_pin_memory: bool) -> None:
        self._processors: RowStates[Callable[[torch.Tensor], torch.Tensor]] = RowStates()
        self._row_errors: dict[int, str] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """The callable for a request with these parameters, or None if its logits stay as they are.

        A callable with two positional parameters is called as (output_ids, logits_row), one with three as
        (prompt_ids, output_ids, logits_row). output_ids: tokens generated so far; logits_row: [vocab_size]
        float32, which it may change in place.
        """

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is not None:
            self._processors.update(batch_update, self._bind)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for row, processor in self._processors.items():
            try:
                self._apply_row(logits[row], processor)
            except Exception as error:
                self._row_errors[row] = f"logits processor {type(self).__name__} failed: {describe(error)}"
        return logits

    def take_row_errors(self) -> dict[int, str]:
        """Errors of the last `apply` by row; forgotten once taken."""
        errors, self._row_errors = self._row_errors, {}
        return errors

    @staticmethod
    def _apply_row(logits_row: torch.Tensor, processor: Callable[[torch.Tensor], torch.Tensor]) -> None:
        result = processor(logits_row)
        if result is logits_row:
            return
        if not isinstance(result, torch.Tensor) or result.shape != logits_row.shape:
            shape = tuple(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
            raise ValueError(f"it must return logits of shape {tuple(logits_row.shape)}, got {shape}")
        logits_row.copy_(result)

    def _bind(
        self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]
    ) -> Callable[[torch.Tensor], torch.Tensor] | None:
        try:
            processor = self.new_req_logits_processor(params)
            if processor is None:
                return None
            wants_prompt = _num_positional_parameters(processor) >= 3
        except Exception as error:
            return _raiser(error)
        if wants_prompt:
            return lambda logits_row: processor(prompt_ids, output_ids, logits_row)
        return lambda logits_row: processor(output_ids, logits_row)


def describe(error: Exception) -> str:
    """An exception as one line: its class and its text."""
    return f"{type(error).__name__}: {error}"


def _num_positional_parameters(function: Callable[..., object]) -> int:
    """Positional parameters without a default; a default is how closures carry values along."""
    return sum(
        parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        for parameter in inspect.signature(function).parameters.values()
    )


def _raiser(error: Exception) -> Callable[[torch.Tensor], torch.Tensor]:
    """Stands in for a callable that could not be made, so that the error meets the request's row."""

    def raise_error(logits_row: torch.Tensor) -> torch.Tensor:
        raise error

    return raise_error
