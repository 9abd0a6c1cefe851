"""Every format of the KV cache: a prompt's own chunk reads back the rounded keys, as later steps do, so that how work
is cut up, what comes from the prefix cache and what is computed again change no token.

On packed weights, whose native products give a row the same bits in every batch. Those of torch on dense weights may
differ in the last bit, which the step from one int8 number to the next makes visible.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fathom.kernels import native
from tests.engine.test_invariance import GREEDY, PROMPTS, make_llm, tokens
from tests.models.tiny_gguf import write_gguf

pytestmark = pytest.mark.skipif(native.cpu is None, reason="packed weights are slow without the native kernels")

CASES = [("qwen3-tied", "float16"), ("gemma3", "bfloat16"), ("gemma3", "int8"), ("llama-gqa", "int8")]
Answers = list[list[list[int]]]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request, tiny: Callable[[str], Path], tmp_path_factory) -> tuple[Path, dict[str, Any], Answers]:
    """A model, a format, and the answers one prompt at a time with the plainest settings."""
    name, dtype = request.param
    path = write_gguf(tiny(name), tmp_path_factory.mktemp(name) / "model.gguf", "Q8_0")
    options = {"kv_cache_dtype": dtype, "weights": "packed"}
    with make_llm(path, enable_prefix_caching=False, **options) as llm:
        return path, options, [tokens(llm, [prompt])[0] for prompt in PROMPTS]


@pytest.mark.parametrize(
    "changes", [{"max_num_batched_tokens": 16}, {"block_size": 8}, {"block_size": 5}, {"num_threads": 2}], ids=str
)
def test_limits_of_a_step(case, changes: dict[str, Any]) -> None:
    path, options, alone = case
    with make_llm(path, **options, **changes) as llm:
        assert tokens(llm) == alone


def test_a_warm_prefix_cache(case) -> None:
    path, options, alone = case
    with make_llm(path, **options) as llm:
        tokens(llm)
        again = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        assert all(output.num_cached_tokens > 0 for output in again if len(output.prompt_token_ids) > 16)
        assert [output.outputs[0].token_ids for output in again] == [answers[0] for answers in alone]


def test_preemption(case) -> None:
    path, options, alone = case
    with make_llm(path, **options) as llm:
        pages = sum(spec.page_bytes(16) for spec in llm.collective_rpc("get_kv_cache_specs")[0])
    with make_llm(path, **options, kv_cache_memory_bytes=170 * pages // 16, max_num_batched_tokens=32) as llm:
        assert tokens(llm) == alone
        assert llm.get_stats()["num_preemptions"] > 0


def test_int8_is_not_float32(tiny: Callable[[str], Path]) -> None:
    """Or the rest of this file would compare nothing."""
    with make_llm(tiny("llama-gqa")) as exact, make_llm(tiny("llama-gqa"), kv_cache_dtype="int8") as rounded:
        assert tokens(exact) != tokens(rounded)
