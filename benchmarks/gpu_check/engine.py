"""One engine with dummy weights: how it boots, phase by phase, and how fast it then decodes, prefills and does both.

Percentages are of what the ceilings allow (fathom.entrypoints.cli.bench.roofline): for a decode step weights and KV
cache read once, or the operations, whichever takes longer; for a prompt its operations.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.models import make_model
from benchmarks.gpu_check.rows import Report, attempt
from fathom import EngineConfig, LLMEngine, SamplingParams
from fathom.entrypoints.cli.bench.roofline import Roofline, measure_roofline
from fathom.outputs import RequestOutput
from fathom.sampling_params import RequestOutputKind

THE_TEXTS_S = {
    "caller, spawn, import": 0.5,
    "load the model": 3.0,
    "peak of memory": 1.0,
    "KV cache, CUDA graphs": 4.0,
    "warm-up, the rest": 6.0,
}
THE_TEXTS_TOTAL_S = 14.5
"""Seconds that the text of vLLM's boot tells for each phase, of a 1.7B model on an H100."""

GROUPS = {
    "start process, import": "caller, spawn, import",
    "load model": "load the model",
    "profile memory": "peak of memory",
    "create KV cache": "KV cache, CUDA graphs",
}
"""Which of them a phase of ours belongs to; those with graphs in their name to the fourth, others to the fifth."""


def run(
    report: Report,
    *,
    model: str,
    folder: str,
    options: dict[str, Any],
    spawned: float,
    phases: bool = False,
    beside_text: bool = False,
    ready_within_s: float | None = None,
    decode: Sequence[int] = (),
    decode_tokens: int = 128,
    decode_context: int = 128,
    prefill: int = 0,
    mixed: int = 0,
    mixed_prompt: int = 200,
    ceilings: dict[str, float] | None = None,
    goals: dict[str, float] | None = None,
    seed: int = 0,
) -> None:
    """Boot, then whatever of decode (numbers of sequences), prefill (a length) and mixed (requests) is asked for.

    spawned: time.time() when this process was started. phases: whether to report the boot's, and beside_text those of
    the text as well.
    """
    goals = goals or {}
    make_model(model, Path(folder))
    own_process = find_spec("zmq") is not None and find_spec("setproctitle") is not None
    base: dict[str, Any] = {
        "model": folder,
        "load_format": "dummy",
        "multiprocess": own_process,
        "seed": seed,
        "show_progress": False,
        "disable_log_stats": True,
        "enable_prefix_caching": False,
    }
    config = EngineConfig.from_options(**base | options)
    before = time.time()
    with LLMEngine(config) as engine:
        ready_s = time.time() - before
        if phases:
            report_phases(report, engine.ready.phases, ready_s, beside_text)
        note = f"the text {THE_TEXTS_TOTAL_S:g} s" if beside_text else ""
        report("boot: ready after LLM(...)", ready_s, "s", most=ready_within_s, note=note)
        where = "a process of its own" if config.runtime.multiprocess else "the caller's process"
        report("boot: ready after python starts", before - spawned + ready_s, "s", note=f"engine in {where}")
        load = Load(engine, seed)
        measured = None if ceilings is None else limits(engine, ceilings)
        for count in decode:
            with attempt(report, f"decode, {count} sequences"):
                report_decode(report, load, count, decode_context, decode_tokens, measured, goals)
        if prefill:
            with attempt(report, f"prefill, {prefill} tokens"):
                report_prefill(report, load, prefill, measured, goals)
        if mixed:
            with attempt(report, f"mixed steps, {mixed} requests"):
                load.mixed(mixed // 4, mixed_prompt, decode_tokens // 4)
                seconds = load.mixed(mixed, mixed_prompt, decode_tokens // 2)
                rate = mixed * (mixed_prompt + decode_tokens // 2) / seconds
                report(f"mixed steps, {mixed} requests", rate, "tokens/s", note="a prompt in nearly every step")


def report_phases(report: Report, phases: list[tuple[str, float]], ready_s: float, beside_text: bool) -> None:
    groups: dict[str, list[tuple[str, float]]] = {group: [] for group in THE_TEXTS_S}
    for name, seconds in phases:
        group = "KV cache, CUDA graphs" if "graph" in name.lower() else GROUPS.get(name, "warm-up, the rest")
        groups[group].append((name, seconds))
    rest_s = ready_s - sum(seconds for _, seconds in phases)
    groups["warm-up, the rest"].append(("handshake and caller", max(0.0, rest_s)))
    for group, own in groups.items():
        note = ", ".join(f"{name} {seconds:.2f}" for name, seconds in own)
        if beside_text:
            note = f"the text {THE_TEXTS_S[group]:g} s; {note}"
        report(f"boot: {group}", sum(seconds for _, seconds in own), "s", note=note)


def report_decode(
    report: Report,
    load: Load,
    count: int,
    context: int,
    num_tokens: int,
    measured: Roofline | None,
    goals: dict[str, float],
) -> None:
    load.decode(count, context, min(8, num_tokens))  # Triton compiles what it has not met
    step_s, length = load.decode(count, context, num_tokens)
    report(f"decode, {count} sequences", count / step_s, "tokens/s", note=f"{1e3 * step_s:.2f} ms a step")
    if measured is not None:
        share = 100 * measured.step_seconds(length, count) / step_s
        report(f"decode, {count}, of the limit", share, "%", least=goals.get(f"decode {count}"))


def report_prefill(report: Report, load: Load, length: int, measured: Roofline | None, goals: dict[str, float]) -> None:
    load.prefill(length)
    seconds = sorted(load.prefill(length) for _ in range(3))[1]
    report(f"prefill, {length} tokens", length / seconds, "tokens/s", note=f"{1e3 * seconds:.1f} ms")
    if measured is not None:
        share = 100 * measured.prompt_seconds(length) / seconds
        report(f"prefill, {length}, of the limit", share, "%", least=goals.get("prefill"))


def limits(engine: LLMEngine, ceilings: dict[str, float]) -> Roofline:
    """What the model takes, against the ceilings (bytes and operations a second)."""
    return replace(measure_roofline(engine), bandwidth=ceilings["bandwidth"], peak=ceilings["peak"], peak_kind="16-bit")


class Load:
    """Requests of made-up tokens for an engine."""

    def __init__(self, engine: LLMEngine, seed: int) -> None:
        self._engine = engine
        self._chance = random.Random(seed)
        self._number = 0

    def decode(self, count: int, context: int, num_tokens: int) -> tuple[float, float]:
        """(seconds of a step while all of `count` sequences decode, their average length then)."""
        for _ in range(count):
            self._add(context, num_tokens)
        seen: dict[str, int] = {}
        started = 0.0
        before = 0
        while True:
            outputs = self._step()
            now = time.perf_counter()
            for output in outputs:
                seen[output.request_id] = seen.get(output.request_id, 0) + len(output.outputs[0].token_ids)
            if started and any(output.finished for output in outputs):
                break
            if not started and len(seen) == count:
                started, before = now, sum(seen.values())
        steps = (sum(seen.values()) - before) / count
        length = context + (before + sum(seen.values())) / (2 * count)
        self._finish()
        return (now - started) / steps, length

    def prefill(self, length: int) -> float:
        """Seconds from a prompt to its first token."""
        start = time.perf_counter()
        self._add(length, 1)
        self._finish()
        return time.perf_counter() - start

    def mixed(self, count: int, prompt: int, num_tokens: int) -> float:
        """Seconds for `count` requests of which one comes whenever the engine has told of a step."""
        start = time.perf_counter()
        for _ in range(count):
            self._add(prompt, num_tokens)
            self._step()
        self._finish()
        return time.perf_counter() - start

    def _add(self, length: int, num_tokens: int) -> None:
        self._number += 1
        prompt = [self._chance.randrange(1, 500) for _ in range(length)]
        params = SamplingParams(
            temperature=0.0,
            ignore_eos=True,
            max_tokens=num_tokens,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._engine.add_request(f"request-{self._number}", prompt, params)

    def _step(self) -> list[RequestOutput]:
        outputs = self._engine.step()
        for output in outputs:
            if output.outputs[0].error is not None:
                raise RuntimeError(output.outputs[0].error)
        return outputs

    def _finish(self) -> None:
        while self._engine.has_unfinished_requests():
            self._step()
