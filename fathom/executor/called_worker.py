"""CalledWorker: a worker as its executor calls it, by messages, wherever the two of them run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from fathom.allocator import spare_what_the_start_made
from fathom.config import EngineConfig
from fathom.dist.place import Place
from fathom.dist.shares import even_cut
from fathom.executor.base import public_method
from fathom.executor.messages import (
    EVERYBODY,
    CallMethod,
    ExecuteModel,
    Failed,
    InitializeFromConfig,
    StartWorker,
    WorkerCall,
    WorkerReply,
    as_outcome,
)
from fathom.hardware import parse_cores
from fathom.plugins import load_general_plugins
from fathom.step import PendingOutput
from fathom.wire.codec import Encoder, Frame
from fathom.wire.messages import EngineSetup
from fathom.wire.remote_errors import to_remote_error


class Answer(NamedTuple):
    """The frames of a WorkerReply, and whether the executor is waiting for it."""

    frames: list[Frame]
    is_wanted: bool


class CalledWorker:
    """Runs calls, the first of which starts the worker.

    Args:
        start: makes the worker, after the ranks have met.
    """

    def __init__(self, place: Place, start: Callable[[EngineSetup], Any]) -> None:
        self._place = place
        self._start = start
        self._encoder = Encoder()
        self._worker: Any = None

    def run(self, call: StartWorker | InitializeFromConfig | ExecuteModel | CallMethod) -> Any:
        """What the call has returned, or the exception that it has raised."""
        try:
            return self._run(call)
        except Exception as error:
            return error

    def answer(self, call: WorkerCall, result: Any) -> Answer:
        """What there is to say of a call that `run` has run, when it is known; a failed one is reported in any case."""
        try:
            if isinstance(result, PendingOutput):
                result = result.result()
            if isinstance(result, Exception):
                raise result
            frames = self._encoder.encode(WorkerReply(call.number, as_outcome(result)))
        except Exception as error:
            failed = WorkerReply(call.number, Failed(to_remote_error(error)))
            return Answer(self._encoder.encode(failed), is_wanted=True)
        return Answer(frames, is_wanted=call.reply_from in (EVERYBODY, self._place.rank))

    def _run(self, call: StartWorker | InitializeFromConfig | ExecuteModel | CallMethod) -> Any:
        if isinstance(call, StartWorker):
            load_general_plugins()
            own = own_config(call.setup.config, self._place)
            self._worker = self._start(msgspec.structs.replace(call.setup, config=own))
            spare_what_the_start_made()
            return None
        if isinstance(call, ExecuteModel):
            return self._worker.execute_model(call.step)
        if isinstance(call, InitializeFromConfig):
            return self._worker.initialize_from_config(call.kv_cache, call.max_model_len)
        return public_method(self._worker, call.method)(*call.args)


def own_config(config: EngineConfig, place: Place) -> EngineConfig:
    """The config of one worker: its share of the threads and cores, and progress bars on the first rank alone."""
    changes: dict[str, Any] = {"show_progress": config.runtime.show_progress and place.rank == 0}
    if config.runtime.num_threads is not None:
        share = even_cut(config.runtime.num_threads, place.rank, place.num_workers)
        changes["num_threads"] = share.size
        if config.runtime.cpu_cores is not None:
            cores = parse_cores(config.runtime.cpu_cores)[share.slice]
            changes["cpu_cores"] = ",".join(map(str, cores))
    return config.replace(**changes)
