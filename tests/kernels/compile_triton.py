"""Compiles the Triton kernels for GPUs that are not here, one line each: run by test_triton_compiles.

A launch needs a GPU, so each kernel is replaced by what notes its launches; what is compiled are the argument types,
constants and alignments that the real callers launch it with. No kernel may take more shared memory than its GPU has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from fathom.kernels import row_search
from fathom.kernels.activation import triton as activation
from fathom.kernels.attention import triton as attention
from fathom.kernels.embedding import triton as embedding
from fathom.kernels.fp8_matmul import triton as fp8_matmul
from fathom.kernels.norm import triton as norm
from fathom.kernels.penalties import triton as penalties
from fathom.kernels.quant_matmul import triton as quant_matmul
from fathom.kernels.rotate_and_store import triton as rotate
from fathom.kernels.sampling import DrawSettings
from fathom.kernels.sampling import triton as sampling
from fathom.kernels.token_logprobs import triton as token_logprobs
from tests.kernels.kv_pages import nan_cache
from tests.quant.random_weights import ALL, random_weight

TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int8: "*i8",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e5m2: "*fp8e5",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float64: "*fp64",
    float: "fp32",
    int: "i32",
}
SHARED_KIB = {89: 99, 90: 227}
"""Compute capability -> what a program can have of shared memory."""
LAUNCHED = {
    activation: ["_gated"],
    attention: ["_attend", "_merge"],
    embedding: ["_decode_rows"],
    fp8_matmul: ["_multiply"],
    norm: ["_rms_norm"],
    penalties: ["_apply"],
    quant_matmul: ["_multiply"],
    rotate: ["_rotate_and_store"],
    row_search: ["_best_of_tiles", "_narrow", "_finish"],
    sampling: ["_best_tokens", "_set_floors", "_measure", "_set_goals", "_draw_tokens", "_truncate"],
    token_logprobs: ["_count", "_compact", "_measure", "_score"],
}
"""The kernels; other functions of their modules are parts of them."""


class Compiled:
    """Stands where a kernel is launched: kernel[grid](...) compiles it and prints its name and its GPU."""

    def __init__(self, kernel: JITFunction, target: GPUTarget) -> None:
        self.kernel, self._target = kernel, target

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self._compile

    def _compile(self, *args: Any, **constants: Any) -> None:
        kernel = self.kernel
        options = {"num_warps": constants.pop("num_warps")} if "num_warps" in constants else {}
        named = dict(zip(kernel.arg_names, args, strict=False)) | constants
        signature, values, attributes = {}, {}, {}
        for parameter in kernel.params:
            argument = named[parameter.name]
            of_its_own = not parameter.do_not_specialize
            # As in a launch 1 is a constant, and what 16 divides is known to be so.
            if parameter.is_constexpr or (type(argument) is int and argument == 1 and of_its_own):
                signature[parameter.name], values[parameter.num,] = "constexpr", argument
            else:
                kind = argument.dtype if isinstance(argument, torch.Tensor) else type(argument)
                signature[parameter.name] = TYPES[kind]
                number = argument.data_ptr() if isinstance(argument, torch.Tensor) else argument
                if of_its_own and not parameter.do_not_specialize_on_alignment and number % 16 == 0:
                    attributes[parameter.num,] = [["tt.divisibility", 16]]
        source = ASTSource(kernel, signature, constexprs=values, attrs=attributes)
        compiled = triton.compile(source, target=self._target, options=options)
        assert compiled.asm["cubin"]
        assert compiled.metadata.shared <= SHARED_KIB[self._target.arch] * 1024, (named, compiled.metadata.shared)
        print(kernel.__module__, kernel.__name__, self._target.arch)


def launch_all(dtype: torch.dtype, kv_dtype: Any, num_tokens: int) -> None:
    """Call every kernel for two requests: decodes of one token, or longer ones with all that a model may ask for."""
    cache = nan_cache(4, 16, 2, 128, kv_dtype, keys_by_token=True)
    ids, table, floats = (
        torch.zeros(64, dtype=torch.int64),
        torch.zeros(2, 512, dtype=torch.int32),
        torch.zeros(64, 128),
    )
    lengths = torch.zeros(3, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    query = torch.zeros(num_tokens, 8, 128, dtype=dtype)
    options = {} if num_tokens == 2 else {"window": 100, "softcap": 5.0}
    attention.paged_attention(query, cache, table, *lengths, 0.1, **options)
    qkv = torch.zeros(num_tokens, 12 * 128, dtype=dtype)
    weights = (None, None, 0.0) if num_tokens == 2 else (floats[0], floats[0], 0.01)
    rotate.rotate_and_store(qkv, ids[:num_tokens], floats[:, :64], floats[:, :64], ids[:num_tokens], cache, *weights)
    norm.rms_norm(qkv, torch.zeros(12 * 128), 0.01)
    norm.add_rms_norm(qkv, qkv, torch.zeros(12 * 128), 0.01)
    activation.silu_and_mul(qkv)
    activation.gelu_tanh_and_mul(qkv)


def choose_tokens(num_rows: int, vocab_size: int) -> None:
    """Call what follows a model, with all settings."""
    logits, rows = torch.zeros(num_rows, vocab_size), np.arange(num_rows)
    settings = DrawSettings.neutral(num_rows, vocab_size)
    settings = settings._replace(top_k=np.full(num_rows, 50), top_p=np.full(num_rows, 0.9))
    sampling.best_tokens(logits, rows)
    sampling.draw_tokens(logits, rows, settings, np.zeros(num_rows))
    sampling.truncate(logits, rows, settings)
    for k, normalised in ((20, True), (1, False)):
        token_logprobs.token_logprobs(logits, rows, torch.from_numpy(rows), k, normalised)
    seen = [rows] * num_rows
    penalties.apply_penalties(
        logits, rows, np.ones((num_rows, 3), np.float32), seen, [row.astype(np.float32) for row in seen]
    )


def multiply_all() -> None:
    """Call the products with packed weights and the lookup of their rows, in every format and dtype."""
    for form in ALL:
        quant_matmul.quant_matmul(torch.zeros(1, 256, dtype=torch.bfloat16), random_weight(64, 256, form))
        embedding.embedding(torch.zeros(2, dtype=torch.int64), random_weight(64, 2048, form), 1.0, torch.bfloat16)
    for dtype in (torch.float16, torch.float32):
        quant_matmul.quant_matmul(torch.zeros(40, 256, dtype=dtype), random_weight(64, 256, ALL[0]), torch.zeros(64))
    for dtype in (torch.bfloat16, torch.float16):
        weight, bias = torch.zeros(64, 256, dtype=torch.float8_e4m3fn), torch.zeros(64, dtype=dtype)
        fp8_matmul.fp8_matmul(torch.zeros(40, 256, dtype=dtype), weight, torch.zeros(64), bias)


def attend_in_wide_heads() -> None:
    """What takes the most shared memory."""
    for dtype, kv_dtype, dim in ((torch.bfloat16, "bfloat16", 128), (torch.float32, "float32", 256)):
        cache, table = nan_cache(4, 16, 2, dim, kv_dtype, keys_by_token=True), torch.zeros(2, 512, dtype=torch.int32)
        lengths = torch.zeros(3, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
        attention.paged_attention(torch.zeros(40, 8, dim, dtype=dtype), cache, table, *lengths, 0.1)


def compile_for(arch: int) -> None:
    for module, names in LAUNCHED.items():
        for name in names:
            kernel = getattr(module, name)
            kernel = kernel if isinstance(kernel, JITFunction) else kernel.kernel
            setattr(module, name, Compiled(kernel, GPUTarget("cuda", arch, 32)))


def main() -> None:
    compile_for(89)
    attend_in_wide_heads()
    compile_for(90)
    for dtype, kv_dtype, num_tokens in (
        (torch.bfloat16, "bfloat16", 2),
        (torch.float16, "int8", 40),
        (torch.float32, "float32", 40),
        (torch.bfloat16, "fp8_e4m3", 2),
        (torch.float16, "fp8_e5m2", 40),
    ):
        launch_all(dtype, kv_dtype, num_tokens)
    choose_tokens(2, 151_936)
    choose_tokens(1, 1_000)
    multiply_all()


if __name__ == "__main__":
    main()
