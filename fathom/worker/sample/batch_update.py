"""BatchUpdate: how the rows of the persistent batch changed between two steps, as one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from fathom.sampling_params import SamplingParams


class MoveDirectionality(Enum):
    """How a row moves: over its target, leaving its old place empty, or in exchange with it."""

    UNIDIRECTIONAL = auto()
    SWAP = auto()


AddedRequest = tuple[int, SamplingParams, list[int] | None, list[int]]
MovedRequest = tuple[int, int, MoveDirectionality]


@dataclass(frozen=True, slots=True)
class BatchUpdate:
    """What happened to the batch's rows since the last step.

    To be applied in this order:

    1. removed: rows whose request has left; their state is dropped.
    2. added: (row, params, prompt token ids or None, output token ids). A row that is still occupied is
       replaced. The output list is live: the worker appends to it, so a processor keeps the reference and
       reads it in `apply`. It is empty for a new request and holds the output so far after preemption.
    3. moved: (from, to, direction), one after the other. UNIDIRECTIONAL overwrites `to` and empties `from`;
       SWAP exchanges the two. A row without state moves as "no state".

    batch_size: number of rows once all this is done; the rows are then 0 .. batch_size - 1.
    """

    batch_size: int
    removed: Sequence[int] = ()
    added: Sequence[AddedRequest] = ()
    moved: Sequence[MovedRequest] = ()
