"""Place: which worker one is. Ranks are counted stage by stage, the ranks of a stage beside each other.

    pipeline_parallel_size=2, tensor_parallel_size=2      stage 0: ranks 0, 1      stage 1: ranks 2, 3
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """One worker's place among all of them.

    workers_here: those on its machine, itself among them; None: all. device_index: which of the GPUs that it sees is
    its own; None: that of its rank.
    """

    rank: int = 0
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    workers_here: int | None = None
    device_index: int | None = None

    @property
    def num_workers(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def tensor_rank(self) -> int:
        return self.rank % self.tensor_parallel_size

    @property
    def stage(self) -> int:
        return self.rank // self.tensor_parallel_size

    @property
    def sampler(self) -> int:
        """The rank that chooses tokens: the first of the last stage."""
        return self.num_workers - self.tensor_parallel_size

    @property
    def name(self) -> str:
        """The worker in titles and messages; sizes of 1 are left out, as in vLLM."""
        tensor = f"_TP{self.tensor_rank}" if self.tensor_parallel_size > 1 else ""
        stage = f"_PP{self.stage}" if self.pipeline_parallel_size > 1 else ""
        return f"Worker{stage}{tensor}"


ONLY = Place()
"""The place of a worker that is alone."""
