"""What a user can do when memory runs out, by what was being done."""

from __future__ import annotations

LOAD = (
    "Three ways out: smaller weights (a smaller model, a 16-bit dtype, or on a CPU quantization='int8' or 'int4'); "
    "more workers, each with its part of them (tensor_parallel_size); or free memory that other programs hold."
)
PROFILE = (
    "Three ways out: a smaller step (lower max_num_batched_tokens or max_num_seqs); smaller weights (a smaller model, "
    "or more workers with tensor_parallel_size); or free memory that other programs hold."
)
NOTHING_LEFT = (
    "Three ways out: a larger share (raise gpu_memory_utilization) or free memory that other programs hold; a smaller "
    "step (lower max_num_batched_tokens or max_num_seqs); or smaller weights (a smaller model, or more workers with "
    "tensor_parallel_size)."
)
KV_CACHE = (
    "Three ways out: a smaller cache (lower kv_cache_memory_bytes or, on CUDA, gpu_memory_utilization); a narrower one "
    "(kv_cache_dtype='int8'); or free memory that other programs hold."
)
GRAPHS = (
    "Three ways out: fewer graphs (lower max_cudagraph_capture_size, or cudagraph_mode='FULL_DECODE_ONLY'); none "
    "(enforce_eager=True); or a smaller KV cache (lower gpu_memory_utilization)."
)
STEP = (
    "Three ways out: a smaller step (lower max_num_batched_tokens or max_num_seqs); a smaller KV cache (lower "
    "kv_cache_memory_bytes or, on CUDA, gpu_memory_utilization); or free memory that other programs hold."
)
