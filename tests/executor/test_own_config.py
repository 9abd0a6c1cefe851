"""Workers on a CPU share its threads and cores among them."""

from __future__ import annotations

from fathom.config import EngineConfig
from fathom.dist.place import Place
from fathom.executor.called_worker import own_config


def test_threads_and_cores_are_dealt_out() -> None:
    config = EngineConfig.from_options(num_threads=5, cpu_cores="0-3,8", tensor_parallel_size=2)
    first, second = (own_config(config, Place(rank, 2, 1)).runtime for rank in range(2))
    assert (first.num_threads, first.cpu_cores) == (2, "0,1")
    assert (second.num_threads, second.cpu_cores) == (3, "2,3,8")
    assert (first.show_progress, second.show_progress) == (True, False)
