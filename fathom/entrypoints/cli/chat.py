"""`fathom chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING

from fathom.entrypoints.cli.engine_flags import add_engine_flags, config_from_flags
from fathom.entrypoints.cli.openai_client import add_remote_flags, remote_from_flags
from fathom.entrypoints.cli.stream import Conversation, add_sampling_flags, quiet_unless, sampling_from_flags
from fathom.errors import ClientError, RequestFailedError

if TYPE_CHECKING:
    from fathom.entrypoints.cli.remote_chat import RemoteConversation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_name", nargs="?", metavar="MODEL", help="the same as --model")
    parser.add_argument("--system", "--system-prompt", help="the system message")
    parser.add_argument("--verbose", action="store_true", help="log what the engine does")
    add_remote_flags(parser)
    add_sampling_flags(parser)
    add_engine_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Read questions and print answers until the input ends. Ctrl-C ends an answer, a second one the conversation."""
    quiet_unless(options.verbose)
    params = sampling_from_flags(options)
    if options.model_name is not None:
        setattr(options, "engine.model", options.model_name)
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - line editing for input()
    with _open(options) as conversation:
        print("Ask away. Ctrl-C stops an answer, Ctrl-D ends.", file=sys.stderr)
        ask = "> " if sys.stdin.isatty() else ""  # what is piped in needs no asking for
        while True:
            try:
                question = input(ask)
            except EOFError:
                print(file=sys.stderr)
                return 0
            except KeyboardInterrupt:
                print(file=sys.stderr)  # the shell's prompt gets a line of its own
                raise
            if not question.strip():
                continue
            try:
                if conversation.ask(question, params).finish_reason == "length":
                    print("[cut off by --max-tokens or the end of the context]", file=sys.stderr)
            except KeyboardInterrupt:
                print("[stopped]", file=sys.stderr)
            except (ClientError, RequestFailedError) as error:
                print(f"fathom: {error}", file=sys.stderr)


def _open(options: argparse.Namespace) -> Conversation | RemoteConversation:
    """With the server of --base-url, or with an engine made for it."""
    if options.base_url is None:
        return Conversation(config_from_flags(options), options.system)
    from fathom.entrypoints.cli.remote_chat import RemoteConversation

    return RemoteConversation(remote_from_flags(options), options.system)
