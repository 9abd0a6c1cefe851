"""EngineConfig: every option of the engine, once, with its type, its default and one line of help.

Configuration has three lives. A user writes it (some fields "auto" or None); `resolve.resolve` replaces those
once, with a reason for each; after that it is frozen and passed down whole. What is only known later (the
number of KV blocks, a max_model_len that had to be cut) is a separate value, `wire.messages.EngineReady`.
Command-line flags and keyword arguments are generated from these fields.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fathom.errors import ConfigError

DEFAULT_MODEL = "smollm2-135m"


def option(default: Any, help: str) -> Any:
    """A config field: its default and its help line."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class ModelOptions:
    """Which model, and how it is loaded."""

    model: str = option(DEFAULT_MODEL, "Folder, .gguf file, catalogue name or Hugging Face repo id.")
    tokenizer: str | None = option(None, "Where the tokenizer is, if not with the model.")
    revision: str | None = option(None, "Branch, tag or commit of a Hugging Face repo.")
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = option(
        "auto", "Type of weights and computation; auto picks what is right and fast on the device."
    )
    weights: Literal["auto", "packed", "dense"] = option(
        "auto",
        "packed: matrices stay as the checkpoint stores them, or are rounded to dtype=bfloat16; dense: become dtype.",
    )
    quantization: Literal["int8", "int4", "fp16", "fp8"] | None = option(
        None, "Round the matrices of an unquantised checkpoint to this while they are read; fp8: on CUDA only."
    )
    activations: Literal["int8", "float32"] = option(
        "int8", "What meets quantised weights: rounded to int8, or float32 as it is (slower, to compare)."
    )
    load_format: Literal["auto", "dummy"] = option("auto", "dummy: random weights from config.json alone.")
    max_model_len: int | None = option(None, "Longest sequence, prompt and answer; default: what the model allows.")
    seed: int | None = option(
        None,
        "Seed of requests that bring none of their own; None: a new one each start.",
    )
    generation_config: Literal["auto", "none"] = option(
        "auto", "auto: take sampling defaults from the model's generation_config.json; none: ignore the file."
    )
    max_logprobs: int = option(20, "Most logprobs a request may ask for; -1: the whole vocabulary.")
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"] = option(
        "raw_logprobs", "What logprobs report: before (raw) or after (processed) filters and temperature."
    )
    logits_processors: tuple[str, ...] = option((), "Custom logits processors, as module:Class.")


@dataclass(frozen=True)
class CacheOptions:
    """The paged KV cache."""

    block_size: int = option(16, "Tokens in one KV block.")
    kv_cache_dtype: Literal["auto", "float32", "float16", "bfloat16", "int8", "fp8", "fp8_e4m3", "fp8_e5m2"] = option(
        "auto",
        "Type of keys and values in the KV cache; auto: dtype, or less beside quantised weights (CPU); fp8: fp8_e4m3.",
    )
    kv_cache_memory_bytes: int | None = option(
        None, "Bytes for the KV cache of each worker; default: sized to the machine."
    )
    gpu_memory_utilization: float = option(0.9, "CUDA: share of the device's memory that the engine may use.")
    enable_prefix_caching: bool = option(True, "Reuse the KV blocks of prompts with a common beginning.")


@dataclass(frozen=True)
class SchedulerOptions:
    """What goes into a step."""

    max_num_seqs: int | None = option(None, "Most requests in one step; default 256.")
    max_num_batched_tokens: int | None = option(
        None, "Most tokens computed in one step; default 2048, or as many as itl_target_ms allows."
    )
    itl_target_ms: float | None = option(
        None,
        "Milliseconds that a stream may wait for its next token while prompts are computed: steps are sized to it when "
        "the engine starts, up to max_num_batched_tokens; 0: they are not; default: 150 in fathom serve, else 0.",
    )
    enable_chunked_prefill: bool = option(True, "Compute long prompts in pieces between other requests' tokens.")
    long_prefill_token_threshold: int = option(0, "Most prompt tokens of one request in a step; 0: no limit.")
    max_long_partial_prefills: int | None = option(
        None,
        "Prompts longer than a step that may be under way at once; shorter ones overtake those that wait; "
        "default 1, or no limit with long_prefill_token_threshold.",
    )
    scheduling_policy: Literal["fcfs", "priority"] = option(
        "fcfs", "Order of admission: first come first served, or lowest priority value first."
    )
    async_scheduling: bool | None = option(
        None, "Schedule a step while the one before it is computed; default: yes on CUDA, no on a CPU."
    )


@dataclass(frozen=True)
class ParallelOptions:
    """How many workers share the model."""

    tensor_parallel_size: int = option(1, "Workers among which every layer is cut; each is a process.")
    pipeline_parallel_size: int = option(1, "Stages into which the layers are divided; each has its own workers.")
    distributed_executor_backend: Literal["uni", "mp", "ray"] | None = option(
        None,
        "uni: one worker in the engine's process; mp: a process for each; ray: a Ray actor for each; "
        "default: mp if there are several.",
    )

    @property
    def num_workers(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size


@dataclass(frozen=True)
class RuntimeOptions:
    """Where and how the engine runs."""

    device: Literal["auto", "cpu", "cuda"] = option("auto", "Device of weights and KV cache.")
    multiprocess: bool | None = option(
        None, "Run the engine in a process of its own; default: FATHOM_ENABLE_MULTIPROCESSING, else yes."
    )
    num_threads: int | None = option(None, "CPU threads of the model; default: the cores this process may use.")
    cpu_cores: str | None = option(
        None, 'Cores to bind the model\'s threads to, one each, as in "0-3,8"; default: they are not bound.'
    )
    attention_backend: Literal["auto", "CPU_ATTN", "TRITON_ATTN", "FLASH_ATTN"] = option(
        "auto", "Whose attention kernels; auto: our own, or on CUDA the package flash-attn's, if it is here and fits."
    )
    enforce_eager: bool = option(False, "Run every step call by call; else steps are recorded and replayed.")
    cudagraph_mode: Literal["NONE", "PIECEWISE", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"] | None = option(
        None,
        "CUDA: steps that are captured as graphs; FULL: decodes as one graph each, PIECEWISE: any batch, attention "
        "between graphs; default: FULL_AND_PIECEWISE, or NONE with enforce_eager.",
    )
    cudagraph_capture_sizes: tuple[int, ...] | None = option(
        None,
        "CUDA: batch sizes in tokens that graphs are captured for, smaller batches are padded; default: 1, 2, 4, then "
        "every 8 up to 256, then every 16.",
    )
    max_cudagraph_capture_size: int | None = option(
        None, "CUDA: largest of these sizes; default: twice max_num_seqs, up to 512."
    )
    ready_timeout_s: float | None = option(
        None, "Seconds to wait for the engine process; default FATHOM_ENGINE_READY_TIMEOUT_S, else 600."
    )
    disable_log_stats: bool = option(False, "Neither collect nor log what the scheduler does.")
    show_progress: bool = option(True, "Show progress bars on long work such as loading weights.")


@dataclass(frozen=True)
class EngineConfig:
    """All options, in sections. Build one with `EngineConfig.from_options`."""

    model: ModelOptions = field(default_factory=ModelOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)
    parallel: ParallelOptions = field(default_factory=ParallelOptions)
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)

    @classmethod
    def from_options(cls, **options: Any) -> EngineConfig:
        """Sort flat keyword options into their sections and check each value's type.

        Raises:
            TypeError: an option that does not exist, with the nearest name that does.
            ConfigError: a value of the wrong type or outside its choices.
        """
        sections: dict[str, dict[str, Any]] = {name: {} for name in _SECTIONS}
        for name, value in options.items():
            if name not in _OPTION_HOME:
                raise TypeError(unknown_option(name))
            section, option_type = _OPTION_HOME[name]
            sections[section][name] = _check_type(name, value, option_type)
        config = cls(**{name: kind(**sections[name]) for name, kind in _SECTIONS.items()})
        _check_ranges(config)
        return config

    def replace(self, **options: Any) -> EngineConfig:
        """A copy with some flat options changed."""
        merged = {name: getattr(getattr(self, home), name) for name, (home, _) in _OPTION_HOME.items()}
        return EngineConfig.from_options(**(merged | options))


_SECTIONS: dict[str, Any] = {
    "model": ModelOptions,
    "cache": CacheOptions,
    "scheduler": SchedulerOptions,
    "parallel": ParallelOptions,
    "runtime": RuntimeOptions,
}
_OPTION_HOME: dict[str, tuple[str, Any]] = {
    name: (section, hint) for section, kind in _SECTIONS.items() for name, hint in get_type_hints(kind).items()
}


def iter_options() -> Iterator[tuple[str, Any, Any, str]]:
    """(name, type, default, help) of every option, in order: what flags and docs are generated from."""
    for kind in _SECTIONS.values():
        hints = get_type_hints(kind)
        for item in dataclasses.fields(kind):
            yield item.name, hints[item.name], item.default, item.metadata["help"]


def unknown_option(name: str) -> str:
    near = difflib.get_close_matches(name, _OPTION_HOME, n=1, cutoff=0.5)
    return f"unknown engine option {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def _check_type(name: str, value: Any, expected: Any) -> Any:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    alternatives = get_args(expected) if get_origin(expected) not in (Literal, tuple, None) else (expected,)
    for alternative in alternatives:
        if get_origin(alternative) is Literal:
            if isinstance(value, str) and value in get_args(alternative):
                return value
        elif get_origin(alternative) is tuple:
            if isinstance(value, (list, tuple)) and all(type(item) is get_args(alternative)[0] for item in value):
                return tuple(value)
        elif alternative is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        elif isinstance(value, alternative) and isinstance(value, bool) == (alternative is bool):
            return value
    raise ConfigError(f"{name} must be {_type_words(alternatives)}, got {value!r}.", parameter=name, value=value)


def _type_words(alternatives: tuple[Any, ...]) -> str:
    words = []
    for kind in alternatives:
        if get_origin(kind) is Literal:
            words += [repr(choice) for choice in get_args(kind)]
        elif get_origin(kind) is tuple:
            words.append(f"a list of {get_args(kind)[0].__name__}")
        else:
            words.append("None" if kind is type(None) else kind.__name__)
    return " or ".join(words)


_SMALLEST = {
    "max_model_len": 2,  # a token of the prompt and one of the answer
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "block_size": 1,
    "kv_cache_memory_bytes": 1,
    "long_prefill_token_threshold": 0,
    "max_long_partial_prefills": 1,
    "max_logprobs": -1,
    "num_threads": 1,
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "max_cudagraph_capture_size": 1,
}
_LARGEST = {"num_threads": 1024, "max_num_seqs": 65_536}  # each is a thread, each has a row in every buffer
_SIZES_RULE = "must be numbers of tokens, each at least 1"
_INT64 = 2**63 - 1  # what crosses the process boundary


def _check_ranges(config: EngineConfig) -> None:
    for name, (home, _) in _OPTION_HOME.items():
        value = getattr(getattr(config, home), name)
        if isinstance(value, int):
            low, high = _SMALLEST.get(name, -_INT64), _LARGEST.get(name, _INT64)
            _require(value >= low, name, value, f"must be at least {low}")
            _require(value <= high, name, value, f"must be at most {high}")
    sizes = config.runtime.cudagraph_capture_sizes
    _require(sizes is None or all(1 <= size <= _INT64 for size in sizes), "cudagraph_capture_sizes", sizes, _SIZES_RULE)
    target = config.scheduler.itl_target_ms
    _require(target is None or 0 <= target < math.inf, "itl_target_ms", target, "must be a number of milliseconds")
    share, timeout = config.cache.gpu_memory_utilization, config.runtime.ready_timeout_s
    _require(0 < share <= 1, "gpu_memory_utilization", share, "must be in (0, 1]")
    in_time = timeout is None or 0 < timeout < math.inf
    _require(in_time, "ready_timeout_s", timeout, "must be a positive number of seconds")


def _require(holds: bool, name: str, value: Any, rule: str) -> None:
    if not holds:
        raise ConfigError(f"{name} {rule}, got {value}.", parameter=name, value=value)
