"""`fathom bench serve`: requests over HTTP to any server of OpenAI's API, at a rate or so many at a time."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from fathom.entrypoints.cli.bench.latencies import failures, latencies, rates, target
from fathom.entrypoints.cli.bench.measure import seed_of
from fathom.entrypoints.cli.bench.own_server import own_server
from fathom.entrypoints.cli.bench.report import Report, add_common_flags, publish
from fathom.entrypoints.cli.bench.workload import Workload, at_least, make_workload, positive, ratio
from fathom.entrypoints.cli.engine_flags import config_from_flags, given_flags
from fathom.entrypoints.cli.openai_client import Remote, add_remote_flags, headers_from_flags, remote_from_flags
from fathom.errors import ConfigError

if TYPE_CHECKING:
    from fathom.entrypoints.cli.bench.load import Answer, Client, Pace

Measured = list[tuple["Pace", float, "list[Answer]"]]
"""Of each setting: seconds, and the answers."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_remote_flags(parser)
    parser.add_argument(
        "--endpoint",
        choices=("/v1/completions", "/v1/chat/completions"),
        default="/v1/completions",
        help="what is asked (%(default)s)",
    )
    group = parser.add_argument_group("workload (made-up tokens; --seed makes another)")
    group.add_argument("--num-prompts", type=at_least(1), default=64, help="requests of each row (%(default)s)")
    group.add_argument(
        "--random-input-len", "--input-len", type=at_least(1), default=128, help="tokens of a prompt (%(default)s)"
    )
    group.add_argument(
        "--random-output-len", "--output-len", type=at_least(1), default=64, help="tokens of an answer (%(default)s)"
    )
    group.add_argument(
        "--random-range-ratio",
        type=ratio,
        default=0.0,
        metavar="R",
        help="lengths vary from 1 - R to 1 + R times those given (%(default)s)",
    )
    group.add_argument(
        "--vocab-size", type=at_least(2), default=32_000, help="token ids are drawn below this (%(default)s)"
    )
    group.add_argument("--num-warmups", type=at_least(0), default=1, help="requests that are dropped (%(default)s)")
    group = parser.add_argument_group("load")
    group.add_argument(
        "--max-concurrency",
        type=at_least(1),
        nargs="+",
        metavar="N",
        help="most requests under way at once, one row each (default: no limit)",
    )
    group.add_argument(
        "--request-rate",
        type=positive,
        nargs="+",
        default=[float("inf")],
        metavar="RATE",
        help="requests sent a second on average, one row each; inf: all at once (%(default)s)",
    )
    group.add_argument(
        "--burstiness",
        type=positive,
        default=1.0,
        help="of the gaps with --request-rate: 1 is a Poisson process, less comes in bursts (%(default)s)",
    )
    group.add_argument(
        "--goodput",
        type=target,
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="count requests a second within these limits: ttft, tpot, e2el",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the latencies (needs fathom-llm[bench])")
    add_common_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure each setting in turn, with prompts of its own, on the server of --base-url or on one started for it.

    Returns 1 if no request succeeded.
    """
    if options.plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "--plot needs matplotlib.", parameter="plot", hint="Install fathom-llm[bench], or leave --plot out."
        )
    import uvloop

    with nullcontext(remote_from_flags(options)) if options.base_url else _started(options) as remote:
        report, measured = uvloop.run(_measure(remote, options))
    if options.plot is not None:
        from fathom.entrypoints.cli.bench.latency_plot import draw

        draw([(_label(pace), answers) for pace, _, answers in measured], options.plot)
    publish(report, options)
    return int(not any(answer.error is None for _, _, answers in measured for answer in answers))


@contextmanager
def _started(options: argparse.Namespace) -> Iterator[Remote]:
    model = config_from_flags(options).model.model
    key = [] if options.api_key is None else [f"--api-key={options.api_key}"]
    with own_server(given_flags(options, "engine"), key) as url:
        yield Remote(url, model, headers_from_flags(options))


async def _measure(remote: Remote, options: argparse.Namespace) -> tuple[Report, Measured]:
    from fathom.entrypoints.cli.bench.load import Client, Pace

    paces = [
        Pace(rate, options.burstiness, concurrency)
        for rate in options.request_rate
        for concurrency in options.max_concurrency or [None]
    ]
    client = Client(remote, options.endpoint)
    try:
        await client.find_dialect(_workload(options, 1, 0))
        if options.num_warmups:
            await client.run(_workload(options, options.num_warmups, 0), Pace())
        measured = await _measure_all(client, paces, options)
    finally:
        await client.close()
    return _report(remote, client, measured, options), measured


async def _measure_all(client: Client, paces: list[Pace], options: argparse.Namespace) -> Measured:
    shown = config_from_flags(options).runtime.show_progress
    measured = []
    with tqdm(
        total=len(paces) * options.num_prompts, desc="serve", unit="req", dynamic_ncols=True, disable=not shown
    ) as bar:
        for number, pace in enumerate(paces):
            workload = _workload(options, options.num_prompts, number + 1)
            seconds, answers = await client.run(workload, pace, seed=seed_of(options), done=bar.update)
            measured.append((pace, seconds, answers))
    return measured


def _workload(options: argparse.Namespace, num_prompts: int, number: int) -> Workload:
    """The requests of a row; each has its own, so that no prefix cache remembers those of the row before."""
    return make_workload(
        num_prompts,
        options.random_input_len,
        options.random_output_len,
        vocab_size=options.vocab_size,
        seed=seed_of(options) + number,
        range_ratio=options.random_range_ratio,
    )


def _report(remote: Remote, client: Client, measured: Measured, options: argparse.Namespace) -> Report:
    workload = {
        "num_prompts": options.num_prompts,
        "random_input_len": options.random_input_len,
        "random_output_len": options.random_output_len,
        "random_range_ratio": options.random_range_ratio,
        "vocab_size": options.vocab_size,
        "burstiness": options.burstiness,
        "seed": seed_of(options),
    }
    targets = dict(options.goodput)
    answered = [answer for _, _, answers in measured for answer in answers if answer.error is None]
    notes = ["ttft: to the first token; tpot: for each after it; itl: between chunks; e2el: to the end"]
    if targets:
        limits = ", ".join(f"{name} {limit:g} ms" for name, limit in targets.items())
        notes.append(f"good: {limits} at most")
    if any(answer.output_tokens is None for answer in answered):
        notes.append("the server counts no tokens: a chunk is taken for one")
    short = _num_other_length(measured, options)
    if short:
        notes.append(f"{short} answers are not as long as was asked for")
    notes += [line for _, _, answers in measured for line in failures(answers)]
    return Report(
        "serve",
        workload,
        {"url": remote.url, "model": remote.model} | client.dialect.describe(),
        [_setting(pace) | rates(seconds, answers, targets) for pace, seconds, answers in measured],
        notes,
        details=[_setting(pace) | row for pace, _, answers in measured for row in latencies(answers)],
    )


def _num_other_length(measured: Measured, options: argparse.Namespace) -> int:
    return sum(
        answer.error is None and answer.num_output != wanted
        for number, (_, _, answers) in enumerate(measured)
        for answer, wanted in zip(answers, _workload(options, options.num_prompts, number + 1).output_lens, strict=True)
    )


def _setting(pace: Pace) -> dict[str, Any]:
    return {"rate": None if pace.rate == float("inf") else pace.rate, "concurrency": pace.concurrency}


def _label(pace: Pace) -> str:
    found = [f"{name} {value:g}" for name, value in _setting(pace).items() if value is not None]
    return ", ".join(found) or "all at once"
