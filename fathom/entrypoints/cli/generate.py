"""`fathom generate "question"`: one answer, printed as it comes."""

from __future__ import annotations

import argparse
import sys

from fathom.entrypoints.cli.engine_flags import add_engine_flags, config_from_flags
from fathom.entrypoints.cli.stream import Conversation, add_sampling_flags, quiet_unless, sampling_from_flags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", help="the question, or - to read it from standard input")
    parser.add_argument("--raw", action="store_true", help="continue the text as it is, without the chat template")
    parser.add_argument("--verbose", action="store_true", help="log what the engine does")
    add_sampling_flags(parser)
    add_engine_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Print the answer to standard output and what it cost to standard error."""
    quiet_unless(options.verbose)
    prompt = sys.stdin.buffer.read().decode(errors="surrogateescape") if options.prompt == "-" else options.prompt
    config = config_from_flags(options)
    params = sampling_from_flags(options)
    with Conversation(config) as conversation:
        answer = conversation.complete(prompt, params) if options.raw else conversation.ask(prompt, params)
        print(answer.summary, file=sys.stderr)
    return 0
