"""The `fathom` command. Each subcommand is a module with `add_arguments` and `run`, imported when it is wanted."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import re
import sys
from typing import NoReturn

import fathom
from fathom.errors import ClientError, ServerError

COMMANDS = {
    "generate": "print a model's answer to one question, as it comes",
    "chat": "talk with a model in the terminal",
    "bench": "measure speed on this machine",
    "serve": "serve a model to clients of OpenAI's API",
    "run-batch": "answer a file of OpenAI requests",
    "pull": "fetch a model, of the catalogue or from Hugging Face",
    "doctor": "show what this machine offers and what Fathom would choose",
}


class Parser(argparse.ArgumentParser):
    """Answers a wrong command line in one line; argparse would list every flag there is."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see `{self.prog} --help`\n")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; errors that a user can mend are one line, without a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        options = parse(arguments)  # imports, which takes long enough for a Ctrl-C
        return int(options.run(options))
    except (ClientError, ServerError) as error:
        print(f"fathom: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's own flush at exit
        return 141


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of a command line, and in `run` what runs them; a wrong one ends the process with status 2."""
    parser = Parser(prog="fathom", description="An LLM inference engine.")
    parser.add_argument("--version", action="version", version=f"fathom {fathom.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    wanted = next((word for word in arguments if word in COMMANDS), None)
    commands = {}
    for name, summary in COMMANDS.items():
        description = f"{summary[0].upper()}{summary[1:]}."
        commands[name] = subparsers.add_parser(name, help=summary, description=description, allow_abbrev=False)
        if name == wanted:  # the others' options need not be known
            module = importlib.import_module(f"fathom.entrypoints.cli.{name.replace('-', '_')}")
            module.add_arguments(commands[name])
            commands[name].set_defaults(run=module.run)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        command = commands[options.command]
        command.error(f"unknown argument {unknown[0]}{_suggestion(unknown[0], command.format_help())}")
    return options


def _suggestion(word: str, help_text: str) -> str:
    """The flag of a command's help that a word may have meant, if there is one."""
    name = word.partition("=")[0]
    near = difflib.get_close_matches(name, re.findall(r"--[a-z][a-z-]+", help_text), n=1, cutoff=0.75)
    return f" (did you mean {near[0]}?)" if near and name.startswith("--") else ""


if __name__ == "__main__":
    sys.exit(main())
