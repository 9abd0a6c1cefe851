"""page_in: ask the system to read weight files into its page cache, before somebody waits for them."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fathom.weights.resolve import ResolvedModel


def page_in(model: ResolvedModel) -> None:
    """Start reading in the background, and return at once; does nothing where the system takes no such advice.

    Configs and the tokenizer are read and the engine's process imports torch meanwhile.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    paths = model.path.glob("*.safetensors") if model.path.is_dir() else [model.path]
    for path in paths:
        # What cannot be read, such as a link of an unfinished download, is for who loads it to tell, if anybody does.
        with contextlib.suppress(OSError), path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
