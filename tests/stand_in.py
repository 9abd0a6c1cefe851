"""A tiny model under the default model's name: what the docs and examples run on in tests.

A local folder comes before the catalogue, so a script that says "smollm2-135m" loads, from a working directory with a
folder of that name, whatever lies in it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from fathom.config import DEFAULT_MODEL

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
CONTEXT_LENGTH = 4096


def write_stand_in(tiny_folder: Path, workplace: Path, context_length: int = CONTEXT_LENGTH) -> None:
    """Copy a tiny Llama to `workplace`, with the default model's name, a chat template and a context of its length."""
    folder = workplace / DEFAULT_MODEL
    shutil.copytree(tiny_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = context_length
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
