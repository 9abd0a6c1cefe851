"""`fathom run-batch -i requests.jsonl -o answers.jsonl`: a file of OpenAI requests, answered without a server."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from fathom.entrypoints.cli.engine_flags import add_engine_flags, add_flags, config_from_flags, given_flags
from fathom.entrypoints.cli.stream import quiet_unless
from fathom.entrypoints.server.settings import ServerSettings, iter_settings

if TYPE_CHECKING:
    from fathom.config import EngineConfig
    from fathom.entrypoints.batch.files import OutputFile
    from fathom.entrypoints.batch.run import Tally

_SETTINGS = (
    "served_model_name",
    "chat_template",
    "default_chat_template_kwargs",
    "trust_request_chat_template",
    "tool_call_parser",
    "reasoning_parser",
    "max_body_bytes",
    "request_timeout",
)
"""The server's settings that mean something without a server."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_name", nargs="?", metavar="MODEL", help="the same as --model")
    parser.add_argument("-i", "--input-file", required=True, metavar="FILE", help="requests, one JSON object a line")
    parser.add_argument(
        "-o", "--output-file", required=True, metavar="FILE", help="answers; a run that broke off goes on"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a row failed")
    parser.add_argument("--verbose", action="store_true", help="log what the engine does")
    add_flags(parser, "server", (setting for setting in iter_settings() if setting[0] in _SETTINGS))
    add_engine_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Answer the file's rows; say at the end what became of them. What is wrong with a flag or file is found first."""
    quiet_unless(options.verbose)
    given: dict[str, Any] = given_flags(options, "server")
    settings = ServerSettings(**given | {"served_model_name": tuple(given.get("served_model_name", ()))})
    if options.model_name is not None:
        setattr(options, "engine.model", options.model_name)
    config = config_from_flags(options)

    from fathom.entrypoints.batch.files import OutputFile, check_paths, count_lines

    source, target = check_paths(options.input_file, options.output_file)
    with OutputFile(target) as output:
        before = output.num_answered
        if before:
            print(f"fathom: {target} has {before} rows already; going on", file=sys.stderr)
        began = time.monotonic()
        tally = asyncio.run(_run(config, settings, source, output, count_lines(source)))
    print(
        f"{tally.answered} rows answered, {tally.failed} failed, {tally.skipped} skipped; "
        f"{tally.prompt_tokens} tokens in, {tally.completion_tokens} out; {time.monotonic() - began:.1f} s",
        file=sys.stderr,
    )
    return int(options.strict and tally.failed > 0)


async def _run(
    config: EngineConfig, settings: ServerSettings, source: Path, output: OutputFile, num_rows: int
) -> Tally:
    from fathom.entrypoints.batch.run import BatchRun
    from fathom.entrypoints.server.app import create_app
    from fathom.entrypoints.server.serving import Serving, model_names
    from fathom.entrypoints.server.under_way import OwnCounts
    from fathom.frontend.async_engine import AsyncLLM
    from fathom.frontend.metrics import PrometheusObserver

    metrics = PrometheusObserver(model_names(settings, config.model.model)[0])
    engine = await AsyncLLM.start(config, metrics)
    try:
        places = engine.config.scheduler.max_num_seqs or 1
        serving = Serving(engine, replace(settings, max_queue=sys.maxsize, max_queue_tokens=None), metrics, OwnCounts())
        key = settings.keys[0] if settings.keys else None
        with tqdm(total=num_rows, unit="row", disable=not config.runtime.show_progress) as bar:

            def told(tally: Tally) -> None:
                bar.update(tally.answered + tally.failed + tally.skipped - bar.n)
                bar.set_postfix(failed=tally.failed, refresh=False)

            batch = BatchRun(create_app(serving), output, key, settings.max_body_bytes, told)
            await batch.run(source, in_flight=2 * places)  # as many wait as run, so that no place is ever empty
        return batch.tally
    finally:
        engine.shutdown()
