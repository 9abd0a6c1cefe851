"""Fronts: the processes that share this engine, and whose request is whose.

Each front has an identity of its own, which no later one gets again. A request belongs to the front that sent it: only
that front gets its outputs and can abort it. The scheduler's numbers and the steps' go to all.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import zmq

from fathom.core.control import encode_reply
from fathom.step import LogprobsArrays
from fathom.wire.codec import Decoder, Encoder, Frame
from fathom.wire.messages import (
    AbortRequests,
    AddRequests,
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    FromFront,
)
from fathom.wire.sockets import send

if TYPE_CHECKING:
    from fathom.core.engine_core import EngineCore

logger = logging.getLogger(__name__)

MOST_GONE = 64
"""Fronts that ended last whose names are kept; what an earlier one had sent has been read long since."""


class Fronts:
    """Takes the fronts' messages to the engine, and to each front what is its own.

    Args:
        core: the engine.
        socket: a bound ROUTER.
    """

    def __init__(self, core: EngineCore, socket: Any) -> None:
        self._core = core
        self._socket = socket
        self._decoder: Decoder[FromFront] = Decoder(FromFront)
        self._encoder = Encoder()
        self._present: set[bytes] = set()
        # What is left of their messages may be read after the news of their end.
        self._gone: deque[bytes] = deque(maxlen=MOST_GONE)
        self._owners: dict[str, bytes] = {}  # request id -> the front that it belongs to

    def take_messages(self) -> None:
        """Handle every message that is there. A front is known from its first one on."""
        while True:
            try:
                identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if identity in self._gone:
                continue
            try:
                message = self._decoder.decode(frames)
            except msgspec.DecodeError:
                logger.exception("a message that could not be read is ignored")
                continue
            self._present.add(identity)
            self._handle(identity, message)

    def deliver(self, step: EngineCoreOutputs) -> None:
        """Send each front its part of a step's outputs."""
        for identity, part in split(step, self._owners, self._present).items():
            self._send(identity, self._encoder.encode(part))
        for output in step.outputs:
            if output.finish_reason is not None:
                self._owners.pop(output.request_id, None)

    def drop(self, identity: bytes) -> None:
        """A front has ended: so do its requests, and what is still to come of its messages counts no more."""
        self._present.discard(identity)
        self._gone.append(identity)
        self._abort([request_id for request_id, owner in self._owners.items() if owner == identity])

    def _handle(self, identity: bytes, message: FromFront) -> None:
        if isinstance(message, AddRequests):
            self._add(identity, message)
        elif isinstance(message, AbortRequests):
            self._abort([name for name in message.request_ids if self._owners.get(name) == identity])
        else:
            self._send(identity, encode_reply(self._encoder, self._core.call(message)))

    def _add(self, identity: bytes, message: AddRequests) -> None:
        taken = [request.request_id for request in message.requests if request.request_id in self._owners]
        if taken:  # their outputs would go to somebody else
            message.requests = [request for request in message.requests if request.request_id not in self._owners]
            refused = [
                EngineCoreOutput(name, [], FinishReason.ERROR, error=f"request id {name!r} is in use") for name in taken
            ]
            self._send(identity, self._encoder.encode(EngineCoreOutputs(refused)))
        self._owners |= dict.fromkeys((request.request_id for request in message.requests), identity)
        self._core.add_requests(message)

    def _abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._owners.pop(request_id, None)
        self._core.abort_requests(AbortRequests(request_ids))

    def _send(self, identity: bytes, frames: list[Frame]) -> None:
        with contextlib.suppress(zmq.ZMQError):  # it is gone, which its caller will soon say
            send(self._socket, [identity, *frames])


def split(step: EngineCoreOutputs, owners: dict[str, bytes], fronts: set[bytes]) -> dict[bytes, EngineCoreOutputs]:
    """A step's outputs by front: those of its requests, with their logprobs; the step's numbers for each front.

    Outputs of requests without an owner, which have been aborted meanwhile, are left out.
    """
    parts = {identity: EngineCoreOutputs([], stats=step.stats, step=step.step) for identity in fronts}
    for output in step.outputs:
        identity = owners.get(output.request_id)
        if identity is not None:
            parts[identity].outputs.append(output)
    for request_id, token_ids in step.tokens.items():
        identity = owners.get(request_id)
        if identity is not None:
            parts[identity].tokens[request_id] = token_ids
    if step.logprobs is not None:
        for part in parts.values():
            part.logprobs = _take_rows(step.logprobs, part.outputs)
    return {identity: part for identity, part in parts.items() if part.outputs or part.tokens or part.step is not None}


def _take_rows(logprobs: LogprobsArrays, outputs: list[EngineCoreOutput]) -> LogprobsArrays | None:
    """The rows of these outputs, which are renumbered to match."""
    asked = [output for output in outputs if output.logprobs_row >= 0]
    if not asked:
        return None
    rows = np.array([output.logprobs_row for output in asked])
    for row, output in enumerate(asked):
        output.logprobs_row = row
    return logprobs.take(rows)
