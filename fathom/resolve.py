"""resolve: from a config with "auto" in it to one without, and the reasons. Pure: same input, same answer."""

from __future__ import annotations

from fathom.config import EngineConfig
from fathom.errors import ConfigError
from fathom.hardware import Hardware, parse_cores
from fathom.model_config.values import ModelConfig
from fathom.resolve_attention import resolve_attention
from fathom.resolve_graphs import resolve_graphs
from fathom.resolve_parallel import resolve_parallel

DEFAULT_MAX_NUM_SEQS = 256
DEFAULT_MAX_NUM_BATCHED_TOKENS = 2048
FP8_CACHE = "fp8_e4m3"
"""What kv_cache_dtype=fp8 means, as in vLLM."""


def resolve(config: EngineConfig, model: ModelConfig, hardware: Hardware) -> tuple[EngineConfig, list[str]]:
    """Replace every "auto" and None that depends on model and machine.

    Returns:
        the resolved config, and one sentence for each choice that was made.

    Raises:
        ConfigError: options that contradict each other or the model.
    """
    reasons: list[str] = []
    device = "cpu" if config.runtime.device == "auto" else config.runtime.device
    max_model_len = _max_model_len(config, model, reasons)
    target = _itl_target_ms(config)
    max_num_seqs, budget = _step_limits(config, max_model_len, reasons)
    threads = _num_threads(config, hardware, reasons)
    backend = resolve_parallel(config, model, device, threads, hardware.cores, reasons)
    weights = _weights(config, model, device, hardware, reasons)
    dtype = _dtype(config, model, device, weights, hardware, reasons)
    graph_mode, graph_sizes = resolve_graphs(config, device, max_num_seqs, budget, reasons)
    kv_cache_dtype = _kv_cache_dtype(config, model, device, weights, dtype, hardware, reasons)
    _check_fp8_cache(kv_cache_dtype, device, weights, dtype, hardware)
    resolved = config.replace(
        device=device,
        weights=weights,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        itl_target_ms=target,
        max_long_partial_prefills=_max_long_partial_prefills(config, max_num_seqs),
        num_threads=threads,
        distributed_executor_backend=backend,
        async_scheduling=_async_scheduling(config, device, reasons),
        cudagraph_mode=graph_mode,
        cudagraph_capture_sizes=graph_sizes,
        attention_backend=resolve_attention(config, model, device, dtype, kv_cache_dtype, hardware, reasons),
    )
    return resolved, reasons


def _async_scheduling(config: EngineConfig, device: str, reasons: list[str]) -> bool:
    if config.scheduler.async_scheduling is not None:
        return config.scheduler.async_scheduling
    if device == "cpu":
        reasons.append("async_scheduling=False: on a CPU scheduler and model share the cores, so little is won by it")
    return device != "cpu"


def _weights(config: EngineConfig, model: ModelConfig, device: str, hardware: Hardware, reasons: list[str]) -> str:
    wanted, quantization = config.model.weights, config.model.quantization
    obstacle = _obstacle_to_packing(config, device, hardware)
    if quantization == "fp8":
        return _fp8_weights(config, model, device, hardware, reasons)
    if quantization is not None:
        _check_quantization(config, model, device, obstacle)
        if wanted == "auto":
            reasons.append(
                f"weights=packed: rounded to {quantization} as they are read, {model.dtype} in the checkpoint"
            )
        return "packed"
    if wanted == "packed" and obstacle is not None:
        raise ConfigError(
            f"weights=packed, but {obstacle}.",
            parameter="weights",
            value="packed",
            hint="Leave weights at auto, or use weights=dense.",
        )
    if wanted != "auto":
        return wanted
    obstacle = obstacle or _better_dense(config, model, device, hardware)
    if obstacle is not None:
        reasons.append(f"weights=dense: {obstacle}")
        return "dense"
    reasons.append(f"weights=packed: {_packed_because(model, device, config.model.dtype)}")
    return "packed"


def _fp8_weights(config: EngineConfig, model: ModelConfig, device: str, hardware: Hardware, reasons: list[str]) -> str:
    obstacle, hint = None, "Leave quantization out."
    if not _is_float(model.dtype):
        obstacle = f"the checkpoint is quantised already ({model.dtype})"
    elif config.model.weights == "packed":
        obstacle, hint = "weights=packed has no such format", "Leave out one of the two."
    elif device == "cpu" and config.model.dtype in ("auto", "float32") and hardware.native_kernels:
        obstacle, hint = "it is for device=cuda; the native CPU kernels do not read it", "Use quantization=int8."
    if obstacle is not None:
        raise ConfigError(f"quantization=fp8, but {obstacle}.", parameter="quantization", value="fp8", hint=hint)
    if config.model.weights == "auto":
        reasons.append(f"weights=dense: rounded to fp8 as they are read, {model.dtype} in the checkpoint")
    return "dense"


def _is_float(dtype: str) -> bool:
    """Whether a checkpoint's dtype is a float type; else it is the name of a quantised one."""
    return dtype.startswith(("float", "bfloat"))


def _packed_because(model: ModelConfig, device: str, dtype: str) -> str:
    if device != "cpu":
        return f"{model.dtype} as in the file, decoded within the products"
    if dtype == "bfloat16":
        rounded = f"rounded to bfloat16 as they are read, {model.dtype} in the checkpoint"
        return "bfloat16 as in the checkpoint" if model.dtype == "bfloat16" else rounded
    if not _is_float(model.dtype):
        return f"{model.dtype} as in the file, multiplied in int8; dtype=float32 decodes them instead"
    fewer = "" if model.dtype == "float32" else ", half the bytes of float32 and as exact"
    return f"{model.dtype} as in the checkpoint{fewer}; products are in float32"


def _obstacle_to_packing(config: EngineConfig, device: str, hardware: Hardware) -> str | None:
    """Why weights cannot stay packed; None if they can."""
    if config.model.load_format == "dummy":
        return "load_format=dummy makes up dense weights"
    if device != "cpu":
        return (
            None if hardware.triton else f"device={device} multiplies packed weights by Triton, which is not installed"
        )
    if config.model.dtype not in ("auto", "float32", "bfloat16"):
        return f"dtype={config.model.dtype} is for dense weights; packed ones are multiplied in float32 or bfloat16"
    return None


def _better_dense(config: EngineConfig, model: ModelConfig, device: str, hardware: Hardware) -> str | None:
    """Why weights that could stay packed had better not, if nobody says anything; None if they had."""
    dtype = config.model.dtype
    if device != "cpu":
        if _is_float(model.dtype):
            return f"{model.dtype} in the checkpoint, and a GPU multiplies floats as they are"
        return "dtype=float32 was asked for" if dtype == "float32" else None
    if dtype == "float32":
        return "dtype=float32 was asked for"
    if not hardware.native_kernels:
        return "the native kernels, which multiply packed weights fast, are not installed"
    if config.cache.kv_cache_dtype.startswith("fp8"):
        return f"kv_cache_dtype={config.cache.kv_cache_dtype} is not read by the native kernels, but by torch"
    return None


def _check_quantization(config: EngineConfig, model: ModelConfig, device: str, obstacle: str | None) -> None:
    """Refuse a quantization that cannot be, or that another option contradicts."""
    hint = "Leave quantization out."
    if not _is_float(model.dtype):
        obstacle = f"the checkpoint is quantised already ({model.dtype})"
        hint = "Leave quantization out, or take an unquantised checkpoint of the model."
    elif config.model.weights == "dense":
        obstacle = "weights=dense keeps them at their full size"
        hint = "Leave out one of the two."
    elif device != "cpu" and config.model.quantization == "fp16":
        obstacle = f"device={device} keeps floats in dtype"
        hint = "Use dtype=float16."
    elif device == "cpu" and config.model.dtype == "bfloat16":
        obstacle = "dtype=bfloat16 rounds them to bfloat16"
        hint = "Leave out one of the two."
    elif config.model.dtype == "float32" and config.model.weights == "auto":
        obstacle = "dtype=float32 asks for exact weights"
        hint = "Leave dtype at auto: computation is in float32 anyway."
    if obstacle is not None:
        quantization = config.model.quantization
        raise ConfigError(
            f"quantization={quantization}, but {obstacle}.", parameter="quantization", value=quantization, hint=hint
        )


def _dtype(
    config: EngineConfig, model: ModelConfig, device: str, weights: str, hardware: Hardware, reasons: list[str]
) -> str:
    if config.model.dtype != "auto":
        if device == "cpu" and config.model.dtype != "float32":
            reasons.append(f"dtype={config.model.dtype}: as asked, {_in_16_bits(weights, hardware)}")
        return config.model.dtype
    if device == "cpu":
        reasons.append("dtype=float32: exact, and fast on every CPU")
        return "float32"
    dtype = model.dtype if model.dtype in ("float16", "bfloat16") else "bfloat16"
    reasons.append(f"dtype={dtype}: the checkpoint is {model.dtype}")
    return dtype


def _in_16_bits(weights: str, hardware: Hardware) -> str:
    """What is computed in a dtype of 16 bits on a CPU, and how fast."""
    if weights == "dense":
        return "though torch's CPU kernels for it may be slow"
    if hardware.bfloat16_pairs:
        speed = "in pairs, twice as fast as float32"
    else:
        speed = "as fast as float32: without avx512_bf16 they are multiplied as such"
    return f"for products of weights, {speed}; sums and all else are float32"


def _kv_cache_dtype(
    config: EngineConfig,
    model: ModelConfig,
    device: str,
    weights: str,
    dtype: str,
    hardware: Hardware,
    reasons: list[str],
) -> str:
    if config.cache.kv_cache_dtype != "auto":
        return FP8_CACHE if config.cache.kv_cache_dtype == "fp8" else config.cache.kv_cache_dtype
    quantised = config.model.quantization in ("int8", "int4") or not _is_float(model.dtype)
    if device == "cpu" and weights == "packed" and quantised and config.model.dtype == "auto":
        chosen, reason = _rounded_kv_cache(model, hardware)
        reasons.append(f"kv_cache_dtype={chosen}: {reason}")
        return chosen
    reasons.append(f"kv_cache_dtype={dtype}: the same as dtype")
    return dtype


def _rounded_kv_cache(model: ModelConfig, hardware: Hardware) -> tuple[str, str]:
    """The type of keys and values beside quantised weights on a CPU, and why."""
    in_16_bits = "bfloat16" if hardware.bfloat16_pairs else "float16"
    if hardware.native_kernels and not model.attention_bias:
        why = f"half the bytes of 16 bits, and rounds no more than quantised weights do; {in_16_bits} keeps 16 bits"
        return "int8", why
    faster = ", and this processor multiplies pairs of them" if hardware.bfloat16_pairs else ""
    why = f"rounds less than quantised weights do, and is half the bytes to read{faster}"
    if model.attention_bias:
        why += "; int8 would round this model's keys, which have a bias, too much"
    return in_16_bits, why


def _check_fp8_cache(kv_cache_dtype: str, device: str, weights: str, dtype: str, hardware: Hardware) -> None:
    """Refuse it where the native kernels would have to read it, which know whole numbers instead."""
    native = device == "cpu" and hardware.native_kernels and (weights == "packed" or dtype == "float32")
    if native and kv_cache_dtype.startswith("fp8"):
        raise ConfigError(
            f"kv_cache_dtype={kv_cache_dtype} is for device=cuda; the native CPU kernels do not read it.",
            parameter="kv_cache_dtype",
            value=kv_cache_dtype,
            hint="Use kv_cache_dtype=int8, which takes about as many bytes.",
        )


def _num_threads(config: EngineConfig, hardware: Hardware, reasons: list[str]) -> int:
    wanted, cores = config.runtime.num_threads, config.runtime.cpu_cores
    if cores is not None:
        count = _count_cores(cores, hardware)
        if wanted not in (None, count):
            raise ConfigError(
                f"num_threads={wanted}, but cpu_cores={cores!r} names {count} cores, one for each thread.",
                parameter="num_threads",
                value=wanted,
                hint="Leave num_threads out.",
            )
        return count
    if wanted is None:
        reasons.append(f"num_threads={hardware.cores}: the physical cores that this process may use")
        return hardware.cores
    if wanted > hardware.cores:
        reasons.append(f"num_threads={wanted}: as given; they wait for each other on {hardware.cores} physical cores")
    return wanted


def _count_cores(text: str, hardware: Hardware) -> int:
    try:
        cores = parse_cores(text)
    except ValueError:
        raise ConfigError(
            f"cpu_cores={text!r} is not a list of different cores.",
            parameter="cpu_cores",
            value=text,
            hint='Write numbers and ranges, as in "0-3,8".',
        ) from None
    if not set(cores) <= set(hardware.core_ids):
        usable = ", ".join(map(str, hardware.core_ids)) or "none: this system does not bind threads"
        raise ConfigError(
            f"cpu_cores={text!r} names cores that this process may not use.",
            parameter="cpu_cores",
            value=text,
            hint=f"It may use {usable}.",
        )
    return len(cores)


def _max_model_len(config: EngineConfig, model: ModelConfig, reasons: list[str]) -> int:
    limit = model.max_position_embeddings
    wanted = config.model.max_model_len
    if wanted is None:
        reasons.append(f"max_model_len={limit}: the model's own context length")
        return limit
    if wanted > limit:
        raise ConfigError(
            f"max_model_len={wanted} is more than the model's context length, {limit}.",
            parameter="max_model_len",
            value=wanted,
            hint=f"Use at most {limit}.",
        )
    return wanted


def _itl_target_ms(config: EngineConfig) -> float:
    target = config.scheduler.itl_target_ms or 0.0
    if target and not config.scheduler.enable_chunked_prefill:
        raise ConfigError(
            f"itl_target_ms={target:g}, but chunked prefill is off, so a step takes as long as its longest prompt.",
            parameter="itl_target_ms",
            value=target,
            hint="Leave out one of the two.",
        )
    return target


def _max_long_partial_prefills(config: EngineConfig, max_num_seqs: int) -> int:
    """With a threshold, no prompt takes a whole step, and a limit would leave the rest of it unused."""
    scheduler = config.scheduler
    if scheduler.max_long_partial_prefills is not None:
        return scheduler.max_long_partial_prefills
    return max_num_seqs if scheduler.long_prefill_token_threshold else 1


def _step_limits(config: EngineConfig, max_model_len: int, reasons: list[str]) -> tuple[int, int]:
    seqs, budget = config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens
    chunked = config.scheduler.enable_chunked_prefill
    if seqs is not None and budget is not None and budget < seqs:
        raise ConfigError(
            f"max_num_batched_tokens={budget} is less than max_num_seqs={seqs}, so running requests would starve.",
            parameter="max_num_batched_tokens",
            value=budget,
            hint="Raise the first or lower the second.",
        )
    if budget is None:
        budget = max(DEFAULT_MAX_NUM_BATCHED_TOKENS, seqs or 0)
        if not chunked and budget < max_model_len:
            budget = max_model_len
            reasons.append(f"max_num_batched_tokens={budget}: without chunked prefill a whole prompt must fit")
    elif not chunked and budget < max_model_len:
        raise ConfigError(
            f"max_num_batched_tokens={budget} is less than max_model_len={max_model_len} and chunked prefill is off, "
            "so longer prompts could never be scheduled.",
            parameter="max_num_batched_tokens",
            value=budget,
            hint="Raise it, lower max_model_len, or set enable_chunked_prefill=True.",
        )
    if seqs is None:
        seqs = min(DEFAULT_MAX_NUM_SEQS, budget)
        if seqs < DEFAULT_MAX_NUM_SEQS:
            reasons.append(f"max_num_seqs={seqs}: one token of each must fit in max_num_batched_tokens={budget}")
    return seqs, budget
