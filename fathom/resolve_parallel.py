"""Which executor runs the workers, and whether this model and machine have room for as many as are asked for."""

from __future__ import annotations

from fathom.config import EngineConfig
from fathom.dist.shares import head_share, obstacle_to_heads, sizes_of_heads
from fathom.errors import ConfigError
from fathom.model_config.values import ModelConfig

COLUMN_GROUP = 32
"""Columns that a cut leaves together, since they may be quantised together (quant/packed.py: COLUMN_STEP)."""


def resolve_parallel(
    config: EngineConfig, model: ModelConfig, device: str, num_threads: int, cores: int, reasons: list[str]
) -> str:
    """The name of the executor.

    Raises:
        ConfigError: heads that cannot be dealt out, more stages than layers, more workers than cores or threads.
    """
    parallel = config.parallel
    tensor, stages = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    num_workers = tensor * stages
    backend = parallel.distributed_executor_backend or ("mp" if num_workers > 1 else "uni")
    if num_workers == 1:
        return backend
    if backend == "uni":
        raise ConfigError(
            f"distributed_executor_backend=uni runs one worker, not {num_workers}.",
            parameter="distributed_executor_backend",
            value=backend,
            hint="Leave it out, or use mp or ray.",
        )
    _check_heads(model, tensor, reasons)
    if stages > model.num_layers:
        raise ConfigError(
            f"pipeline_parallel_size={stages}, but the model has {model.num_layers} layers.",
            parameter="pipeline_parallel_size",
            value=stages,
            hint=f"Use at most {model.num_layers}.",
        )
    if device == "cpu":
        counts = [(num_threads, "threads of num_threads")]
        if backend != "ray":  # the cluster's cores are counted there
            counts.insert(0, (cores, "cores that this process may use"))
        _check_cores(tensor, stages, counts)
        reasons.append(f"{num_workers} workers: they share {num_threads} threads")
    return backend


def _check_heads(model: ModelConfig, tensor: int, reasons: list[str]) -> None:
    obstacle = obstacle_to_heads(model.num_heads, model.num_kv_heads, tensor)
    if obstacle is not None:
        fitting = ", ".join(map(str, sizes_of_heads(model.num_heads, model.num_kv_heads)))
        raise ConfigError(
            f"tensor_parallel_size={tensor} does not fit a model of {model.num_heads} heads and "
            f"{model.num_kv_heads} KV heads: {obstacle}.",
            parameter="tensor_parallel_size",
            value=tensor,
            hint=f"Sizes that fit: {fitting}.",
        )
    groups = -(-model.intermediate_size // COLUMN_GROUP)
    if tensor > groups:
        raise ConfigError(
            f"tensor_parallel_size={tensor}, but the model's intermediate_size of {model.intermediate_size} makes only "
            f"{groups} groups of {COLUMN_GROUP}.",
            parameter="tensor_parallel_size",
            value=tensor,
            hint=f"Use at most {groups}.",
        )
    heads = [head_share(model.num_heads, model.num_kv_heads, rank, tensor).query.size for rank in range(tensor)]
    if len(set(heads)) > 1:
        reasons.append(f"heads dealt out unevenly, {heads}: {model.num_kv_heads} KV heads stay whole")


def _check_cores(tensor: int, stages: int, counts: list[tuple[int, str]]) -> None:
    """A worker without a core of its own would only be in the others' way."""
    num_workers = tensor * stages
    for count, what in counts:
        if num_workers > count:
            raise ConfigError(
                f"tensor_parallel_size={tensor} x pipeline_parallel_size={stages} makes {num_workers} workers, "
                f"more than the {count} {what}.",
                parameter="tensor_parallel_size" if tensor > 1 else "pipeline_parallel_size",
                value=tensor if tensor > 1 else stages,
                hint=f"Use at most {count} workers.",
            )
