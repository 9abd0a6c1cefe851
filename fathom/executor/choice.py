"""Which executor an engine gets, by the name in its config, and a start of it before the config is known whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fathom.config import ParallelOptions
    from fathom.executor.base import Executor
    from fathom.wire.messages import EngineSetup


def prepare_executor(parallel: ParallelOptions) -> Callable[[EngineSetup], Executor]:
    """What makes the executor when the rest of the config is there.

    It takes seconds to import torch: here that is done at once, or begins to be done in the workers' processes. What
    was prepared is not to be dropped; an engine that fails before it has a setup ends its process.
    """
    num_workers = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    if (parallel.distributed_executor_backend or ("mp" if num_workers > 1 else "uni")) == "mp":
        from fathom.executor.multiproc import MultiprocExecutor
        from fathom.executor.workers import start_workers

        return partial(MultiprocExecutor, workers=start_workers(parallel))
    import fathom.worker.worker  # noqa: F401
    from fathom.executor.uniproc import UniprocExecutor

    return UniprocExecutor
