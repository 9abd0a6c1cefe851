"""The `fathom` command. Each subcommand is a module with `add_parser` and `run`, imported when it is wanted."""

from __future__ import annotations

import argparse
import importlib
import sys

import fathom
from fathom.errors import ClientError, ServerError

COMMANDS = {
    "generate": "print a model's answer to one question, as it comes",
    "chat": "talk with a model in the terminal",
    "pull": "fetch a model of the catalogue",
    "doctor": "show what this machine offers and what Fathom would choose",
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; errors that a user can mend are one line, without a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="fathom", description="An LLM inference engine.")
    parser.add_argument("--version", action="version", version=f"fathom {fathom.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    wanted = next((word for word in arguments if word in COMMANDS), None)
    for name, summary in COMMANDS.items():
        command = subparsers.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if name == wanted:  # the others' options need not be known
            module = importlib.import_module(f"fathom.entrypoints.cli.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except (ClientError, ServerError, TypeError) as error:
        if isinstance(error, TypeError) and "option" not in str(error):
            raise
        print(f"fathom: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
