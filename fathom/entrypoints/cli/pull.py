"""fathom pull: fetch a model into the cache, so that it runs offline from then on."""

from __future__ import annotations

import argparse

from fathom.weights.catalogue import CATALOGUE, DEFAULT_MODEL
from fathom.weights.download import is_cached
from fathom.weights.resolve import resolve_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `fathom pull`."""
    parser.add_argument(
        "model", nargs="?", default=DEFAULT_MODEL, help="catalogue name or Hugging Face repository (%(default)s)"
    )
    parser.add_argument("--revision", help="branch, tag or commit of a Hugging Face repository")
    parser.add_argument("--list", action="store_true", help="list the catalogue and stop")


def run(options: argparse.Namespace) -> int:
    """Print the path of the model, downloaded if need be; or the catalogue. Returns the exit status."""
    if options.list:
        for line in _catalogue_lines():
            print(line)
    else:
        print(resolve_model(options.model, options.revision).path)
    return 0


def _catalogue_lines() -> list[str]:
    """name, size, licence, hub repository, and whether the model is in the cache."""
    width = max(map(len, CATALOGUE))
    return [
        f"{entry.name:<{width}}  {entry.size / 1e6:6.0f} MB  {entry.licence:<18}  {entry.hub_id}"
        f"{'  (cached)' if is_cached(entry) else ''}"
        for entry in CATALOGUE.values()
    ]
