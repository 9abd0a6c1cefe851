"""EngineConfig and resolve(): what an option may be, what is chosen for those left open, and what contradicts what."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fathom.config import EngineConfig, iter_options
from fathom.errors import ConfigError
from fathom.hardware import Hardware
from fathom.model_config.values import ModelConfig, RopeConfig
from fathom.resolve import resolve

MODEL = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=512,
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=96,
    max_position_embeddings=4096,
    norm_eps=1e-5,
    rope=RopeConfig(),
    rope_local=RopeConfig(),
    layer_windows=(None, None),
    dtype="float16",
)
HARDWARE = Hardware(cores=3, total_memory=2**34, available_memory=2**33, native_kernels=True)


def resolved(**options: Any) -> EngineConfig:
    return resolve(EngineConfig.from_options(**options), MODEL, HARDWARE)[0]


# ---------------------------------------------------------------- options


def test_every_option_has_a_help_line_and_its_default_passes_its_own_check() -> None:
    options = list(iter_options())
    assert len(options) == len({name for name, _, _, _ in options})
    assert all(help_line.strip().endswith(".") for _, _, _, help_line in options)
    assert EngineConfig.from_options(**{name: default for name, _, default, _ in options}) == EngineConfig()


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("max_num_seq", "max_num_seqs"),
        ("prefix_caching", "enable_prefix_caching"),
        ("kv_cache_memory", "kv_cache_memory_bytes"),
        ("max_len", "max_model_len"),
    ],
)
def test_an_unknown_option_is_a_type_error_with_the_nearest_name(wrong: str, near: str) -> None:
    with pytest.raises(TypeError) as caught:
        EngineConfig.from_options(**{wrong: 1})
    assert str(caught.value) == f"unknown engine option {wrong!r}; did you mean {near!r}?"


def test_an_option_like_no_other_has_no_suggestion() -> None:
    with pytest.raises(TypeError, match=r"unknown engine option 'zzz'$"):
        EngineConfig.from_options(zzz=1)
    with pytest.raises(TypeError, match="max_num_seqs"):
        EngineConfig().replace(max_num_seq=1)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model", None, "model must be str, got None."),
        ("model", 5, "model must be str, got 5."),
        ("tokenizer", ["a"], "tokenizer must be str or None, got ['a']."),
        ("dtype", "fp8", "dtype must be 'auto' or 'float32' or 'float16' or 'bfloat16', got 'fp8'."),
        ("dtype", ["float32"], "dtype must be 'auto' or 'float32' or 'float16' or 'bfloat16', got ['float32']."),
        ("quantization", "awq", "quantization must be 'int8' or 'int4' or 'fp16' or 'fp8' or None, got 'awq'."),
        ("activations", "int4", "activations must be 'int8' or 'float32', got 'int4'."),
        ("load_format", "pt", "load_format must be 'auto' or 'dummy', got 'pt'."),
        ("scheduling_policy", "lifo", "scheduling_policy must be 'fcfs' or 'priority', got 'lifo'."),
        ("generation_config", "some", "generation_config must be 'auto' or 'none', got 'some'."),
        ("device", "tpu", "device must be 'auto' or 'cpu' or 'cuda', got 'tpu'."),
        ("max_model_len", "4k", "max_model_len must be int or None, got '4k'."),
        ("max_model_len", 128.0, "max_model_len must be int or None, got 128.0."),
        ("max_model_len", True, "max_model_len must be int or None, got True."),
        ("max_model_len", 1, "max_model_len must be at least 2, got 1."),
        ("max_num_seqs", 0, "max_num_seqs must be at least 1, got 0."),
        ("max_num_batched_tokens", -1, "max_num_batched_tokens must be at least 1, got -1."),
        ("block_size", 0, "block_size must be at least 1, got 0."),
        ("kv_cache_memory_bytes", 0, "kv_cache_memory_bytes must be at least 1, got 0."),
        ("kv_cache_memory_bytes", 2**63, f"kv_cache_memory_bytes must be at most {2**63 - 1}, got {2**63}."),
        ("long_prefill_token_threshold", -1, "long_prefill_token_threshold must be at least 0, got -1."),
        ("max_logprobs", -2, "max_logprobs must be at least -1, got -2."),
        ("num_threads", 0, "num_threads must be at least 1, got 0."),
        ("num_threads", 1025, "num_threads must be at most 1024, got 1025."),
        ("max_num_seqs", 65_537, "max_num_seqs must be at most 65536, got 65537."),
        ("seed", "0", "seed must be int or None, got '0'."),
        ("seed", 2**70, f"seed must be at most {2**63 - 1}, got {2**70}."),
        ("gpu_memory_utilization", 0, "gpu_memory_utilization must be in (0, 1], got 0.0."),
        ("gpu_memory_utilization", 1.1, "gpu_memory_utilization must be in (0, 1], got 1.1."),
        ("gpu_memory_utilization", float("nan"), "gpu_memory_utilization must be in (0, 1], got nan."),
        ("gpu_memory_utilization", "0.9", "gpu_memory_utilization must be float, got '0.9'."),
        ("ready_timeout_s", 0, "ready_timeout_s must be a positive number of seconds, got 0.0."),
        ("ready_timeout_s", float("inf"), "ready_timeout_s must be a positive number of seconds, got inf."),
        ("enable_prefix_caching", 1, "enable_prefix_caching must be bool, got 1."),
        ("enable_prefix_caching", None, "enable_prefix_caching must be bool, got None."),
        ("multiprocess", "no", "multiprocess must be bool or None, got 'no'."),
        ("logits_processors", "a:B", "logits_processors must be a list of str, got 'a:B'."),
        ("logits_processors", [5], "logits_processors must be a list of str, got [5]."),
        ("cudagraph_capture_sizes", 8, "cudagraph_capture_sizes must be a list of int or None, got 8."),
        ("cudagraph_capture_sizes", [True], "cudagraph_capture_sizes must be a list of int or None, got [True]."),
        (
            "cudagraph_capture_sizes",
            [4, 0],
            "cudagraph_capture_sizes must be numbers of tokens, each at least 1, got (4, 0).",
        ),
    ],
    ids=str,
)
def test_what_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_options(**{name: value})
    assert str(caught.value) == message
    assert caught.value.parameter == name
    assert isinstance(caught.value, ValueError)


def test_what_values_become() -> None:
    config = EngineConfig.from_options(
        model=Path("/models/x"), gpu_memory_utilization=1, logits_processors=["a:B", "c:D"], max_num_seqs=None
    )
    assert config.model.model == "/models/x"
    assert isinstance(config.cache.gpu_memory_utilization, float)
    assert config.model.logits_processors == ("a:B", "c:D")
    assert config.scheduler.max_num_seqs is None


def test_a_config_is_frozen() -> None:
    config = EngineConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.model = None  # type: ignore[misc, assignment]
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.model.max_model_len = 5  # type: ignore[misc]


def test_replace_changes_what_it_is_told_and_leaves_the_original() -> None:
    config = EngineConfig.from_options(max_num_seqs=4, block_size=8)
    changed = config.replace(block_size=32)
    assert (changed.scheduler.max_num_seqs, changed.cache.block_size) == (4, 32)
    assert config.cache.block_size == 8
    with pytest.raises(ConfigError, match="block_size must be at least 1"):
        config.replace(block_size=0)


def test_a_config_crosses_the_process_boundary_unchanged() -> None:
    config = resolved(logits_processors=["a:B"], seed=-3)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=EngineConfig) == config


# ---------------------------------------------------------------- resolve


def test_nothing_is_left_open_and_every_choice_has_its_reason() -> None:
    config, reasons = resolve(EngineConfig(), MODEL, HARDWARE)
    assert (config.model.max_model_len, config.model.dtype, config.model.weights) == (4096, "float32", "packed")
    assert (config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens) == (256, 2048)
    assert (config.runtime.device, config.runtime.num_threads) == ("cpu", 3)
    chosen = [reason.split(": ")[0] for reason in reasons]
    assert chosen == [
        "max_model_len=4096",
        "num_threads=3",
        "weights=packed",
        "dtype=float32",
        "kv_cache_dtype=float32",
        "async_scheduling=False",
    ]
    assert all(len(reason.split(": ", 1)[1]) > 10 for reason in reasons)


def test_what_the_user_chose_stays_and_needs_no_reason() -> None:
    options = {
        "max_model_len": 100,
        "max_num_seqs": 5,
        "max_num_batched_tokens": 64,
        "itl_target_ms": 80.0,
        "max_long_partial_prefills": 2,
        "num_threads": 2,
        "dtype": "float32",
        "weights": "dense",
        "device": "cpu",
        "kv_cache_dtype": "float32",
        "async_scheduling": False,
        "distributed_executor_backend": "uni",
        "cudagraph_mode": "NONE",
        "cudagraph_capture_sizes": (),
        "attention_backend": "CPU_ATTN",
    }
    config, reasons = resolve(EngineConfig.from_options(**options), MODEL, HARDWARE)
    assert config == EngineConfig.from_options(**options)
    assert reasons == []


def test_resolve_is_pure() -> None:
    config = EngineConfig.from_options(max_num_seqs=7)
    first = resolve(config, MODEL, HARDWARE)
    assert resolve(config, MODEL, HARDWARE) == first
    assert config == EngineConfig.from_options(max_num_seqs=7)
    assert resolve(first[0], MODEL, HARDWARE) == (first[0], [])


def test_steps_are_scheduled_ahead_on_cuda_and_where_it_is_asked_for() -> None:
    assert resolved().scheduler.async_scheduling is False
    assert resolved(device="cuda").scheduler.async_scheduling is True
    assert resolved(async_scheduling=True).scheduler.async_scheduling is True
    assert resolved(device="cuda", async_scheduling=False).scheduler.async_scheduling is False


def test_dtype_on_cuda_is_the_checkpoints() -> None:
    assert resolved(device="cuda").model.dtype == "float16"
    wide = dataclasses.replace(MODEL, dtype="float32")
    assert resolve(EngineConfig.from_options(device="cuda"), wide, HARDWARE)[0].model.dtype == "bfloat16"
    assert resolved(device="cuda", dtype="float32").model.dtype == "float32"


def resolved_weights(stored: str = "Q4_1", native_kernels: bool = True, **options: Any) -> tuple[str, str]:
    """(what is chosen for weights of a checkpoint of this dtype, with what reason)"""
    model = dataclasses.replace(MODEL, dtype=stored)
    hardware = dataclasses.replace(HARDWARE, native_kernels=native_kernels)
    config, reasons = resolve(EngineConfig.from_options(**options), model, hardware)
    assert config.model.dtype == options.get("dtype", "float32")
    assert resolve(config, model, hardware)[0] == config
    (reason,) = [reason for reason in reasons if reason.startswith("weights=")] or [""]
    return config.model.weights, reason


@pytest.mark.parametrize(
    ("dtype", "why"),
    [
        ("Q4_1", "Q4_1 as in the file, multiplied in int8; dtype=float32 decodes them instead"),
        ("bfloat16", "bfloat16 as in the checkpoint, half the bytes of float32 and as exact; products are in float32"),
        ("float16", "float16 as in the checkpoint, half the bytes of float32 and as exact; products are in float32"),
        ("float32", "float32 as in the checkpoint; products are in float32"),
    ],
)
def test_weights_stay_as_they_are_stored_where_that_is_fast(dtype: str, why: str) -> None:
    assert resolved_weights(dtype) == ("packed", f"weights=packed: {why}")
    for options, obstacle in (
        ({"dtype": "float32"}, "dtype=float32 was asked for"),
        ({"dtype": "float16"}, "dtype=float16 is for dense weights"),
        ({"load_format": "dummy"}, "load_format=dummy makes up"),
        ({"native_kernels": False}, "native kernels"),
    ):
        weights, reason = resolved_weights(dtype, **options)
        assert weights == "dense"
        assert obstacle in reason
    assert resolved(device="cuda").model.weights == "dense"


@pytest.mark.parametrize("quantization", ["int8", "int4", "fp16"])
def test_quantization_packs(quantization: str) -> None:
    assert resolved_weights("bfloat16", quantization=quantization) == (
        "packed",
        f"weights=packed: rounded to {quantization} as they are read, bfloat16 in the checkpoint",
    )
    assert resolved_weights("float32", quantization=quantization, native_kernels=False)[0] == "packed"
    assert resolved_weights("float32", quantization=quantization, weights="packed") == ("packed", "")


def test_fp8_is_for_gpus_and_keeps_weights_dense() -> None:
    config, reasons = resolve(EngineConfig.from_options(device="cuda", quantization="fp8"), MODEL, HARDWARE)
    assert config.model.weights == "dense"
    assert "weights=dense: rounded to fp8 as they are read, float16 in the checkpoint" in reasons
    assert resolve(config, MODEL, HARDWARE)[0] == config


@pytest.mark.parametrize(
    ("dtype", "options", "why"),
    [
        ("Q4_1", {"device": "cuda"}, "the checkpoint is quantised already (Q4_1). Leave quantization out."),
        (
            "float16",
            {"device": "cuda", "weights": "packed"},
            "weights=packed has no such format. Leave out one of the two.",
        ),
        ("float16", {}, "it is for device=cuda; the native CPU kernels do not read it. Use quantization=int8."),
    ],
)
def test_where_fp8_weights_are_refused(dtype: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(
            EngineConfig.from_options(quantization="fp8", **options), dataclasses.replace(MODEL, dtype=dtype), HARDWARE
        )
    assert str(caught.value) == f"quantization=fp8, but {why}"


@pytest.mark.parametrize(
    ("dtype", "options", "why", "way_out"),
    [
        ("Q4_1", {}, "quantised already (Q4_1)", "unquantised checkpoint"),
        ("bfloat16", {"device": "cuda", "load_format": "dummy"}, "load_format=dummy", "Leave quantization out."),
        ("bfloat16", {"weights": "dense"}, "weights=dense keeps them", "Leave out one of the two."),
        ("bfloat16", {"dtype": "float32"}, "dtype=float32 asks for exact weights", "Leave dtype at auto"),
        ("bfloat16", {"dtype": "float16"}, "dtype=float16 is for dense weights", "Leave quantization out."),
        ("bfloat16", {"dtype": "bfloat16"}, "dtype=bfloat16 rounds them to bfloat16", "Leave out one of the two."),
        ("bfloat16", {"load_format": "dummy"}, "load_format=dummy makes up", "Leave quantization out."),
    ],
    ids=str,
)
def test_a_quantization_that_cannot_be_is_refused(dtype: str, options: dict[str, Any], why: str, way_out: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved_weights(dtype, quantization="int4", **options)
    assert caught.value.parameter == "quantization"
    assert all(words in str(caught.value) for words in ("quantization=int4, but", why, way_out))


def on_cuda(stored: str, triton: bool = True, **options: Any) -> tuple[EngineConfig, str]:
    """(the config for a GPU, the reason for its weights)"""
    model, hardware = dataclasses.replace(MODEL, dtype=stored), dataclasses.replace(HARDWARE, triton=triton)
    config, reasons = resolve(EngineConfig.from_options(device="cuda", **options), model, hardware)
    assert resolve(config, model, hardware) == (config, [])
    (reason,) = [reason for reason in reasons if reason.startswith("weights=")] or [""]
    return config, reason


def test_on_cuda_integers_stay_packed_and_floats_are_dense() -> None:
    config, reason = on_cuda("Q4_1")
    assert (config.model.weights, config.model.dtype, config.cache.kv_cache_dtype) == ("packed", "bfloat16", "bfloat16")
    assert reason == "weights=packed: Q4_1 as in the file, decoded within the products"
    assert on_cuda("Q4_1", dtype="float16")[0].model.weights == "packed"
    assert on_cuda("Q4_1", dtype="float32")[1] == "weights=dense: dtype=float32 was asked for"
    assert "not installed" in on_cuda("Q4_1", triton=False)[1]
    config, reason = on_cuda("float16")
    assert (config.model.weights, config.model.dtype) == ("dense", "float16")
    assert "a GPU multiplies floats as they are" in reason
    config, _ = on_cuda("bfloat16", quantization="int4")
    assert (config.model.weights, config.model.dtype) == ("packed", "bfloat16")
    with pytest.raises(ConfigError, match=r"quantization=fp16, but device=cuda keeps .* Use dtype=float16"):
        on_cuda("bfloat16", quantization="fp16")


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        ("bfloat16", "bfloat16 as in the checkpoint"),
        ("float32", "rounded to bfloat16 as they are read, float32 in the checkpoint"),
        ("Q4_1", "rounded to bfloat16 as they are read, Q4_1 in the checkpoint"),
    ],
)
def test_bfloat16_on_a_cpu_is_for_products_of_packed_weights(stored: str, why: str) -> None:
    assert resolved_weights(stored, dtype="bfloat16") == ("packed", f"weights=packed: {why}")
    assert resolved_weights(stored, dtype="bfloat16", native_kernels=False)[0] == "dense"
    assert resolved_weights(stored, dtype="bfloat16", kv_cache_dtype="fp8")[0] == "dense"
    with pytest.raises(ConfigError, match="native CPU kernels do not read it"):
        resolved(dtype="bfloat16", weights="packed", kv_cache_dtype="fp8")


@pytest.mark.parametrize(
    ("weights", "pairs", "why"),
    [
        ("auto", True, "for products of weights, in pairs, twice as fast as float32; sums and all else are float32"),
        ("auto", False, "for products of weights, as fast as float32: without avx512_bf16 they are multiplied as such"),
        ("dense", True, "though torch's CPU kernels for it may be slow"),
    ],
)
def test_bfloat16_on_a_cpu_says_how_fast_it_is(weights: str, pairs: bool, why: str) -> None:
    hardware = dataclasses.replace(HARDWARE, bfloat16_pairs=pairs)
    config, reasons = resolve(EngineConfig.from_options(dtype="bfloat16", weights=weights), MODEL, hardware)
    (reason,) = [reason for reason in reasons if reason.startswith("dtype=")]
    assert reason.startswith(f"dtype=bfloat16: as asked, {why}")
    assert config.cache.kv_cache_dtype == "bfloat16"


def test_what_was_asked_for_weights_needs_no_reason() -> None:
    assert resolved_weights("Q4_1", weights="dense") == ("dense", "")
    assert resolved_weights("Q4_1", weights="packed", dtype="float32") == ("packed", "")
    assert resolved_weights("Q4_1", weights="packed", native_kernels=False) == ("packed", "")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"device": "cuda", "load_format": "dummy"}, "load_format=dummy makes up"),
        ({"dtype": "float16"}, "dtype=float16 is for dense weights"),
        ({"load_format": "dummy"}, "load_format=dummy makes up"),
    ],
    ids=str,
)
def test_weights_that_cannot_be_packed_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved_weights(weights="packed", **options)
    assert caught.value.parameter == "weights"
    assert all(words in str(caught.value) for words in (why, "use weights=dense"))


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ({}, (256, 2048)),
        ({"max_num_seqs": 4000}, (4000, 4000)),
        ({"max_num_batched_tokens": 16}, (16, 16)),
        ({"max_num_seqs": 8, "max_num_batched_tokens": 8}, (8, 8)),
        ({"enable_chunked_prefill": False}, (256, 4096)),
        ({"enable_chunked_prefill": False, "max_model_len": 512}, (256, 2048)),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 4096}, (256, 4096)),
    ],
    ids=str,
)
def test_limits_of_a_step_fit_each_other(options: dict[str, Any], limits: tuple[int, int]) -> None:
    scheduler = resolved(**options).scheduler
    assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens) == limits


@pytest.mark.parametrize(
    ("options", "parameter", "words"),
    [
        (
            {"max_num_seqs": 20, "max_num_batched_tokens": 10},
            "max_num_batched_tokens",
            ("max_num_batched_tokens=10", "max_num_seqs=20", "Raise the first or lower the second."),
        ),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 512},
            "max_num_batched_tokens",
            ("max_num_batched_tokens=512", "max_model_len=4096", "enable_chunked_prefill=True"),
        ),
        (
            {"enable_chunked_prefill": False, "itl_target_ms": 150},
            "itl_target_ms",
            ("itl_target_ms=150", "chunked prefill is off", "Leave out one of the two."),
        ),
        ({"max_model_len": 4097}, "max_model_len", ("max_model_len=4097", "4096", "Use at most 4096.")),
    ],
    ids=["starving", "unchunked", "unchunked in time", "too long"],
)
def test_contradictions_name_both_sides_and_a_way_out(
    options: dict[str, Any], parameter: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(**options)
    assert caught.value.parameter == parameter
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, 1),
        ({"long_prefill_token_threshold": 64}, 256),  # no prompt fills a step, so several must
        ({"long_prefill_token_threshold": 64, "max_long_partial_prefills": 2}, 2),
        ({"max_long_partial_prefills": 3}, 3),
    ],
    ids=str,
)
def test_long_prompts_under_way(options: dict[str, Any], limit: int) -> None:
    assert resolved(**options).scheduler.max_long_partial_prefills == limit


def test_threads_are_as_many_as_the_cores_that_they_are_bound_to() -> None:
    hardware = dataclasses.replace(HARDWARE, core_ids=(0, 2, 3, 4))
    config, reasons = resolve(EngineConfig.from_options(cpu_cores="2-3,0"), MODEL, hardware)
    assert config.runtime.num_threads == 3
    assert not any("num_threads" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cpu_cores": "0-"}, "not a list of different cores"),
        ({"cpu_cores": "0,2-3,2"}, "not a list of different cores"),
        ({"cpu_cores": "1"}, "may not use"),
        ({"cpu_cores": "0,2", "num_threads": 3}, "names 2 cores"),
    ],
)
def test_cores_that_threads_cannot_be_bound_to_are_refused(options: dict[str, Any], message: str) -> None:
    hardware = dataclasses.replace(HARDWARE, core_ids=(0, 2, 3, 4))
    with pytest.raises(ConfigError, match=message):
        resolve(EngineConfig.from_options(**options), MODEL, hardware)


@pytest.mark.parametrize(
    ("dtype", "options", "expected"),
    [
        ("float32", {}, "float32"),
        ("bfloat16", {}, "float32"),  # 16-bit weights are stored as they are, and computed with exactly
        ("Q4_1", {}, "int8"),
        ("bfloat16", {"quantization": "int8"}, "int8"),
        ("bfloat16", {"quantization": "fp16"}, "float32"),
        ("Q4_1", {"dtype": "float32"}, "float32"),
        ("Q4_1", {"kv_cache_dtype": "float16"}, "float16"),
    ],
)
def test_keys_and_values_are_rounded_only_where_weights_are(dtype: str, options: dict[str, Any], expected: str) -> None:
    model = dataclasses.replace(MODEL, dtype=dtype)
    config, _ = resolve(EngineConfig.from_options(**options), model, HARDWARE)
    assert config.cache.kv_cache_dtype == expected


@pytest.mark.parametrize(
    ("bias", "native", "pairs", "expected", "why"),
    [
        (False, True, True, "int8", "half the bytes of 16 bits.*; bfloat16 keeps 16 bits"),
        (False, True, False, "int8", "half the bytes of 16 bits.*; float16 keeps 16 bits"),
        (
            True,
            True,
            True,
            "bfloat16",
            "multiplies pairs of them; int8 would round this model's keys, which have a bias",
        ),
        (True, True, False, "float16", "is half the bytes to read; int8 would round"),
        (False, False, False, "float16", "is half the bytes to read$"),
    ],
)
def test_how_keys_and_values_are_rounded_beside_quantised_weights(
    bias: bool, native: bool, pairs: bool, expected: str, why: str
) -> None:
    model = dataclasses.replace(MODEL, dtype="Q4_1", attention_bias=bias)
    hardware = dataclasses.replace(HARDWARE, native_kernels=native, bfloat16_pairs=pairs)
    config, reasons = resolve(EngineConfig.from_options(weights="packed"), model, hardware)
    (reason,) = [reason for reason in reasons if reason.startswith("kv_cache_dtype=")]
    assert config.cache.kv_cache_dtype == expected
    assert re.match(f"kv_cache_dtype={expected}: .*{why}", reason)
