"""Compiles the Triton kernels for GPUs that are not here, one line each: run by test_triton_compiles.

A launch needs a GPU, so each kernel is replaced by what notes its launches; what is compiled are the argument types
and constants that the real callers launch it with.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from fathom.kernels.activation import triton as activation
from fathom.kernels.attention import triton as attention
from fathom.kernels.norm import triton as norm
from fathom.kernels.rotate_and_store import triton as rotate
from tests.kernels.kv_pages import nan_cache

TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int8: "*i8",
    torch.int32: "*i32",
    torch.int64: "*i64",
    float: "fp32",
    int: "i32",
}
LAUNCHED = {"_attend", "_merge", "_rms_norm", "_gated", "_rotate_and_store"}
"""The kernels; other functions of their modules are parts of them."""


class Compiled:
    """Stands where a kernel is launched: kernel[grid](...) compiles it and prints its name and its GPU."""

    def __init__(self, kernel: JITFunction, target: GPUTarget) -> None:
        self._kernel, self._target = kernel, target

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self._compile

    def _compile(self, *args: Any, **constants: Any) -> None:
        kernel = self._kernel
        named = dict(zip(kernel.arg_names, args, strict=False)) | constants
        signature, values = {}, {}
        for parameter in kernel.params:
            argument = named[parameter.name]
            if parameter.is_constexpr:
                signature[parameter.name], values[parameter.num,] = "constexpr", argument
            else:
                kind = argument.dtype if isinstance(argument, torch.Tensor) else type(argument)
                signature[parameter.name] = TYPES[kind]
        compiled = triton.compile(ASTSource(kernel, signature, constexprs=values), target=self._target)
        assert compiled.asm["cubin"]
        print(kernel.__name__, self._target.arch)


def launch_all(dtype: torch.dtype, kv_dtype: Any, num_tokens: int) -> None:
    """Call every kernel for two requests: decodes of one token, or longer ones with all that a model may ask for."""
    cache = nan_cache(4, 16, 2, 128, kv_dtype)
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


def main() -> None:
    target = GPUTarget("cuda", 90, 32)
    for module in (activation, attention, norm, rotate):
        for name, value in list(vars(module).items()):
            # Those that are launched; the others are called by them.
            if isinstance(value, JITFunction) and name in {
                "_attend",
                "_merge",
                "_rms_norm",
                "_gated",
                "_rotate_and_store",
            }:
                setattr(module, name, Compiled(value, target))
    for dtype, kv_dtype, num_tokens in (
        (torch.bfloat16, "bfloat16", 2),
        (torch.float16, "int8", 40),
        (torch.float32, "float32", 40),
    ):
        launch_all(dtype, kv_dtype, num_tokens)


if __name__ == "__main__":
    main()
