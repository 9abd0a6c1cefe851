"""`fathom chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import sys

from fathom.entrypoints.cli.engine_flags import add_engine_flags, config_from_flags
from fathom.entrypoints.cli.stream import Conversation, add_sampling_flags, quiet_unless, sampling_from_flags
from fathom.errors import ClientError, RequestFailedError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", help="the system message")
    parser.add_argument("--verbose", action="store_true", help="log what the engine does")
    add_sampling_flags(parser)
    add_engine_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Read questions and print answers until the input ends. Ctrl-C ends an answer, a second one the conversation."""
    quiet_unless(options.verbose)
    config = config_from_flags(options)
    params = sampling_from_flags(options)
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - line editing for input()
    with Conversation(config, options.system) as conversation:
        print("Ask away; Ctrl-D ends.", file=sys.stderr)
        ask = "> " if sys.stdin.isatty() else ""  # what is piped in needs no asking for
        while True:
            try:
                question = input(ask)
            except EOFError:
                print(file=sys.stderr)
                return 0
            if not question.strip():
                continue
            try:
                conversation.ask(question, params)
            except KeyboardInterrupt:
                print("[stopped]", file=sys.stderr)
            except (ClientError, RequestFailedError) as error:
                print(f"fathom: {error}", file=sys.stderr)
