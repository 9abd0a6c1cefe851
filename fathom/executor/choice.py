"""Which executor an engine gets, by the name in its config, and a start of it before the config is known whole."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fathom.errors import ConfigError

if TYPE_CHECKING:
    from fathom.config import ParallelOptions
    from fathom.executor.base import Executor
    from fathom.wire.messages import EngineSetup


def prepare_executor(parallel: ParallelOptions) -> Callable[[EngineSetup], Executor]:
    """What makes the executor when the rest of the config is there.

    It takes seconds to import torch, and to start Ray: here that is done at once, or begins to be done in the workers'
    processes. What was prepared is not to be dropped; an engine that fails before it has a setup ends its process.

    Raises:
        ConfigError: what would run the workers is not there.
    """
    backend = parallel.distributed_executor_backend or ("mp" if parallel.num_workers > 1 else "uni")
    if backend == "ray":
        return _prepare_ray()
    if backend == "mp":
        from fathom.executor.multiproc import MultiprocExecutor
        from fathom.executor.workers import start_workers

        return partial(MultiprocExecutor, workers=start_workers(parallel))
    import fathom.worker.worker  # noqa: F401
    from fathom.executor.uniproc import UniprocExecutor

    return UniprocExecutor


def _prepare_ray() -> Callable[[EngineSetup], Executor]:
    if find_spec("ray") is None:
        raise ConfigError(
            "distributed_executor_backend=ray, but Ray is not installed.",
            parameter="distributed_executor_backend",
            value="ray",
            hint="pip install 'fathom-llm[ray]', on every machine of the cluster.",
        )
    from fathom.executor.ray_head import find_or_start_ray

    connected = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    address, head = (None, None) if connected else find_or_start_ray()

    from fathom.executor.ray import RayExecutor
    from fathom.executor.ray_cluster import RayCluster

    return partial(RayExecutor, cluster=RayCluster(address, head))
