"""The tests' tiny model, for measurements that are about everything but the model."""

from __future__ import annotations

from pathlib import Path

TINY = "tiny"
"""What --model calls it."""


def tiny_model(folder: Path) -> Path:
    """A Llama of three small layers and random weights, written to a folder in this one; needs the extra `test`."""
    from tests.models.tiny import make_tiny  # transformers
    from tests.stand_in import write_stand_in

    write_stand_in(make_tiny("llama-gqa", folder / "made"), folder)
    return next(path for path in folder.iterdir() if (path / "chat_template.jinja").exists())
