"""Peak memory of caller and engine, beside what weights and KV cache need.

Both processes' peaks count every page that they touched, those of shared libraries too. The target is at most 1.3 times
the weights, plus the KV cache as far as it was used, plus 400 MB.

    python benchmarks/memory.py --model smollm2-135m
    python benchmarks/memory.py --model path/to/folder --quantization int4
"""

from __future__ import annotations

import argparse
from pathlib import Path

import psutil

from fathom import LLM, SamplingParams

OVERHEAD = 400e6
WEIGHT_FACTOR = 1.3
PROMPT_TOKENS, ANSWER_TOKENS = 512, 32


def peak_bytes(pid: int) -> int:
    """The most memory that a process had at once."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"no VmHWM for process {pid}")


def kv_bytes(llm: LLM) -> int:
    """What the blocks of the benchmark's request take."""
    ready = llm.llm_engine.ready
    blocks = -(-(PROMPT_TOKENS + ANSWER_TOKENS) // ready.block_size)
    return blocks * ready.kv_cache_bytes // ready.num_kv_blocks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--quantization", choices=("int8", "int4", "fp16"))
    options = parser.parse_args()
    caller = psutil.Process()
    with LLM(options.model, quantization=options.quantization, multiprocess=True, show_progress=False) as llm:
        params = SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS, ignore_eos=True)
        llm.generate([[7 * i % 1000 + 20 for i in range(PROMPT_TOKENS)]], params, use_tqdm=False)
        (engine,) = caller.children()
        weights, kv = llm.collective_rpc("weight_bytes")[0], kv_bytes(llm)
        peaks = {"caller": peak_bytes(caller.pid), "engine": peak_bytes(engine.pid)}
    target = WEIGHT_FACTOR * weights + kv + OVERHEAD
    rows = {"weights": weights, "KV cache used": kv, **peaks, "both": sum(peaks.values()), "target": target}
    for name, nbytes in rows.items():
        print(f"{name:16} {nbytes / 1e6:8.1f} MB")
    print(f"{'ratio':16} {sum(peaks.values()) / target:8.2f}")


if __name__ == "__main__":
    main()
