"""LLM's constructor: options that exist, that vLLM has, and that nobody has; types and weights of the model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fathom import LLM, RequestOutput, SamplingParams
from fathom.compat.options import check_vllm_options, vllm_only_options
from fathom.errors import ConfigError, ModelNotFoundError, ValidationError
from fathom.kernels import native
from tests.entrypoints.conftest import make_llm

TEXT = "Tiny models with random weights"
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def generate(llm: LLM, prompts: Any, params: Any = GREEDY) -> list[RequestOutput]:
    return llm.generate(prompts, params, use_tqdm=False)


def test_an_unknown_option(tiny: Callable[[str], Path]) -> None:
    with pytest.raises(TypeError, match="unknown engine option 'max_seq_len'; did you mean 'max_model_len'"):
        make_llm(tiny("llama-gqa"), max_seq_len=5)


@pytest.mark.parametrize("model", [None, 5])
def test_a_model_is_a_name_or_a_path(model: Any) -> None:
    with pytest.raises(ConfigError, match="model must be str"):
        LLM(model)


def test_a_model_that_is_nowhere() -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        LLM("smolm2-135m", multiprocess=False)
    assert "local folder" in str(caught.value)
    assert "catalogue" in str(caught.value)
    assert "Did you mean 'smollm2-135m'?" in str(caught.value)


def test_vllm_s_neutral_options_are_accepted(tiny: Callable[[str], Path]) -> None:
    with LLM(
        tiny("llama-gqa"),
        multiprocess=False,
        num_threads=1,
        max_model_len=32,
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        quantization=None,
        trust_remote_code=True,
        enforce_eager=True,
        kv_cache_dtype="auto",
        tokenizer_mode="auto",
        skip_tokenizer_init=False,
        swap_space=4,
        cpu_offload_gb=0,
        enable_lora=False,
        speculative_config=None,
        hf_overrides={},
        disable_custom_all_reduce=True,
        gpu_memory_utilization=0.5,
        generation_config="vllm",
        dtype=torch.float32,
    ) as llm:
        assert llm.llm_engine.config.model.generation_config == "none"
        assert llm.llm_engine.config.model.dtype == "float32"
        assert len(generate(llm, [[5]])[0].outputs[0].token_ids) == 6


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable_lora", True),
        ("speculative_config", {"model": "x"}),
        ("runner", "pooling"),
        ("task", "embed"),
    ],
)
def test_what_vllm_can_and_fathom_cannot_is_refused_by_name(tiny: Callable[[str], Path], name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        make_llm(tiny("llama-gqa"), **{name: value})
    assert str(caught.value).startswith(f"{name}={value!r} is not supported. Leave it out, or at ")
    assert caught.value.parameter == name


@pytest.mark.parametrize(
    ("name", "value", "way_out"),
    [
        ("data_parallel_size", 2, "Start several engines, each with its own cores (cpu_cores)."),
        ("skip_tokenizer_init", True, "Pass token ids as prompts, and SamplingParams(detokenize=False)."),
        ("num_gpu_blocks_override", 9, "Say the size of the KV cache with kv_cache_memory_bytes."),
        ("hf_token", "abc", "Set HF_TOKEN in the environment."),
    ],
)
def test_some_refusals_know_another_way(tiny: Callable[[str], Path], name: str, value: Any, way_out: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_llm(tiny("llama-gqa"), **{name: value})
    assert str(caught.value) == f"{name}={value!r} is not supported. {way_out}"


ASKING: dict[str, Any] = {
    "additional_config": {"a": 1},
    "allowed_local_media_path": "/media",
    "allowed_media_domains": ["example.com"],
    "attention_config": {"backend": "x"},
    "calculate_kv_scales": True,
    "code_revision": "main",
    "compilation_config": 3,
    "config_format": "mistral",
    "convert": "embed",
    "cpu_offload_gb": 4,
    "data_parallel_size": 2,
    "decode_context_parallel_size": 2,
    "disable_hybrid_kv_cache_manager": True,
    "disable_log_requests": False,
    "disable_sliding_window": True,
    "download_dir": "/models",
    "enable_dbo": True,
    "enable_eplb": True,
    "enable_expert_parallel": True,
    "enable_log_outputs": True,
    "enable_log_requests": True,
    "enable_lora": True,
    "enable_mm_embeds": True,
    "enable_prompt_embeds": True,
    "enable_return_routed_experts": True,
    "enable_sleep_mode": True,
    "guided_decoding_backend": "xgrammar",
    "hf_config_path": "/config",
    "hf_overrides": {"rope_theta": 1.0},
    "hf_token": "secret",
    "ignore_patterns": ["*.bin"],
    "kv_cache_dtype_skip_layers": [0],
    "kv_events_config": {"a": 1},
    "kv_offloading_size": 4.0,
    "kv_sharing_fast_prefill": True,
    "kv_transfer_config": {"a": 1},
    "limit_mm_per_prompt": {"image": 2},
    "max_num_partial_prefills": 2,
    "mm_processor_cache_gb": 8,
    "mm_processor_kwargs": {"a": 1},
    "model_impl": "transformers",
    "model_loader_extra_config": {"a": 1},
    "num_gpu_blocks_override": 9,
    "optimization_level": 3,
    "override_generation_config": {"temperature": 0.5},
    "override_pooler_config": {"a": 1},
    "performance_mode": "throughput",
    "pooler_config": {"a": 1},
    "prefill_context_parallel_size": 2,
    "prefix_caching_hash_algo": "builtin",
    "profiler_config": {"a": 1},
    "quantization_config": {"a": 1},
    "renderer_num_workers": 2,
    "rope_scaling": {"factor": 2.0},
    "rope_theta": 10_000.0,
    "runner": "pooling",
    "scheduler_cls": "my.Scheduler",
    "scheduler_reserve_full_isl": False,
    "served_model_name": "name",
    "skip_tokenizer_init": True,
    "speculative_config": {"model": "x"},
    "stream_interval": 10,
    "structured_outputs_config": {"backend": "xgrammar"},
    "swap_space": 16,
    "task": "embed",
    "tokenizer_mode": "mistral",
    "tokenizer_revision": "main",
    "use_tqdm_on_load": False,
    "watermark": 0.1,
    "worker_cls": "my.Worker",
    "worker_extension_cls": "my.Extension",
}
"""Of every option that Fathom lacks a value that asks for something, but where neither yes nor no does."""


def test_every_option_without_a_counterpart_is_refused_once_it_asks_for_something() -> None:
    options = dict(vllm_only_options())
    assert options.keys() - ASKING.keys() == {name for name, neutral in options.items() if neutral == (False, True)}
    for name, value in ASKING.items():
        with pytest.raises(ConfigError, match=f"^{name}=.* is not supported") as caught:
            check_vllm_options({name: value})
        assert (caught.value.parameter, caught.value.value) == (name, value)
        for neutral in options[name]:
            assert check_vllm_options({name: neutral}) == {}


@pytest.mark.parametrize(("given", "length"), [("1k", 1000), ("1K", 1024), (64, 64), ("auto", None), (-1, None)])
def test_lengths_as_vllm_writes_them(given: int | str, length: int | None) -> None:
    assert check_vllm_options({"max_model_len": given}) == {"max_model_len": length}


def test_none_leaves_a_switch_at_its_default() -> None:
    options = {"enable_prefix_caching": None, "enable_chunked_prefill": None, "block_size": None, "load_format": "hf"}
    assert check_vllm_options(options) == {"load_format": "auto"}


def test_a_context_of_two_tokens_is_enough_to_start(tiny: Callable[[str], Path]) -> None:
    with make_llm(tiny("llama-gqa"), max_model_len=2) as llm:
        assert len(generate(llm, [[5]])[0].outputs[0].token_ids) == 1


def test_a_compilation_config_about_graphs_is_taken_apart(tiny: Callable[[str], Path]) -> None:
    with make_llm(
        tiny("llama-gqa"), compilation_config={"cudagraph_mode": "none", "cudagraph_capture_sizes": [8]}
    ) as llm:
        assert llm.llm_engine.config.runtime.cudagraph_mode == "NONE"
    with pytest.raises(ConfigError, match="cudagraph_mode=PIECEWISE, but device=cpu has none"):
        make_llm(tiny("llama-gqa"), compilation_config={"cudagraph_mode": "PIECEWISE"})
    with pytest.raises(ConfigError, match=r"compilation_config=.* is not supported"):
        make_llm(tiny("llama-gqa"), compilation_config={"cudagraph_mode": "NONE", "mode": 3})


@pytest.mark.parametrize("value", ["fp8_inc", "fp8_ds_mla", "nvfp4"])
def test_a_cache_type_of_vllm_is_refused_with_a_way_out(tiny: Callable[[str], Path], value: str) -> None:
    with pytest.raises(ConfigError, match=f"kv_cache_dtype='{value}' is not supported. Use 'int8'"):
        make_llm(tiny("llama-gqa"), kv_cache_dtype=value)


@pytest.mark.parametrize(
    ("given", "dtype", "bytes_per_token"),
    [
        ("auto", "float32", 2 * 2 * 16 * 4),
        ("fp16", "float16", 2 * 2 * 16 * 2),
        (torch.bfloat16, "bfloat16", 2 * 2 * 16 * 2),
        ("int8_per_token_head", "int8", 2 * 2 * (16 + 4)),
    ],
)
def test_types_of_the_cache(tiny: Callable[[str], Path], given: Any, dtype: str, bytes_per_token: int) -> None:
    with make_llm(tiny("llama-gqa"), kv_cache_dtype=given) as llm:
        assert llm.llm_engine.config.cache.kv_cache_dtype == dtype
        assert llm.collective_rpc("get_kv_cache_specs")[0][0].bytes_per_token == bytes_per_token
        (output,) = generate(llm, [[5, 6, 7]])
        assert len(output.outputs[0].token_ids) == 6


@pytest.mark.parametrize(("given", "dtype"), [("fp8", "fp8_e4m3"), ("fp8_e5m2", "fp8_e5m2")])
def test_fp8_in_the_cache(tiny: Callable[[str], Path], given: str, dtype: str) -> None:
    """Where plain torch attends; the native kernels leave it to GPUs."""
    with make_llm(tiny("llama-gqa"), kv_cache_dtype=given, dtype="bfloat16") as llm:
        assert llm.llm_engine.config.cache.kv_cache_dtype == dtype
        assert llm.collective_rpc("get_kv_cache_specs")[0][0].bytes_per_token == 2 * 2 * 16
        (output,) = generate(llm, [[5, 6, 7]])
        assert len(output.outputs[0].token_ids) == 6
    if native.cpu is not None:
        with pytest.raises(ConfigError, match=f"kv_cache_dtype={dtype} is for device=cuda.*Use kv_cache_dtype=int8"):
            make_llm(tiny("llama-gqa"), kv_cache_dtype=given)


@pytest.mark.parametrize("value", [None, "auto", "cpu_attn"])
def test_attention_backends_of_a_cpu(tiny: Callable[[str], Path], value: str | None) -> None:
    with make_llm(tiny("llama-gqa"), attention_backend=value) as llm:
        assert llm.llm_engine.config.runtime.attention_backend == "CPU_ATTN"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("FLASH_ATTN", "attention_backend=FLASH_ATTN, but it is for device=cuda. Leave attention_backend at auto"),
        ("TRITON_ATTN", "attention_backend=TRITON_ATTN, but it is for device=cuda. Leave attention_backend at auto"),
        ("FLASHINFER", "or 'TRITON_ATTN' or 'FLASH_ATTN', got 'FLASHINFER'"),
    ],
)
def test_attention_backends_that_a_cpu_lacks(tiny: Callable[[str], Path], value: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make_llm(tiny("llama-gqa"), attention_backend=value)


@pytest.mark.parametrize(("given", "dtype"), [("float16", "float16"), ("half", "float16"), ("bfloat16", "bfloat16")])
def test_narrow_types_run(tiny: Callable[[str], Path], given: str, dtype: str) -> None:
    with make_llm(tiny("llama-gqa"), dtype=given) as llm:
        assert llm.llm_engine.config.model.dtype == dtype
        assert llm.collective_rpc("get_kv_cache_specs")[0][0].bytes_per_token == 2 * 2 * 16 * 2
        (output,) = generate(llm, [[5, 6, 7]], SamplingParams(temperature=0.0, max_tokens=4, logprobs=2))
        assert output.outputs[0].finish_reason in ("length", "stop")
        assert all(np.isfinite([entry.logprob for entry in step.values()]).all() for step in output.outputs[0].logprobs)


@pytest.mark.parametrize("with_tokenizer", [True, False])
def test_dummy_weights_need_a_config_alone(
    tiny: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture, with_tokenizer: bool
) -> None:
    for name in ("config.json", "tokenizer.json") if with_tokenizer else ("config.json",):
        (tmp_path / name).write_bytes((tiny("llama-gqa") / name).read_bytes())
    with pytest.raises(ModelNotFoundError, match=r"model\.safetensors"):
        make_llm(tmp_path)
    with caplog.at_level(logging.WARNING, "fathom"), make_llm(tmp_path, load_format="dummy") as llm:
        answers = generate(llm, [[5, 6], [7]], SamplingParams(temperature=0.0, max_tokens=3, logprobs=1))
        assert [len(output.outputs[0].token_ids) for output in answers] == [3, 3]
        if with_tokenizer:
            assert generate(llm, TEXT)[0].prompt == TEXT
            return
        assert "prompts must be token ids" in caplog.text
        assert answers[0].outputs[0].text == ""
        assert next(iter(answers[0].outputs[0].logprobs[0].values())).decoded_token is None
        for call in (
            lambda: generate(llm, TEXT),
            lambda: generate(llm, [[5]], SamplingParams(stop="a")),
            lambda: generate(llm, [[5]], SamplingParams(bad_words=["a"])),
            lambda: llm.chat([{"role": "user", "content": "a"}]),
        ):
            with pytest.raises(ValidationError, match="tokenizer"):
                call()
