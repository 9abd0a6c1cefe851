"""A bar of finished requests with tokens a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from fathom.outputs import RequestOutput

ProgressBar = bool | Callable[..., Any]
"""Whether to show one, or what makes one, with tqdm's arguments."""


class Progress:
    """The bar of one call.

    Args:
        total: requests to come.
        use_tqdm: whether to show it, or what makes it instead of tqdm, such as a partial of it.
    """

    def __init__(self, total: int, use_tqdm: ProgressBar) -> None:
        make = use_tqdm if callable(use_tqdm) else tqdm
        options: dict[str, Any] = {"total": total, "unit": "req", "dynamic_ncols": True}
        if not callable(use_tqdm):
            options |= {"desc": "Generating", "disable": not (use_tqdm and total)}
        self._bar = make(**options)
        self._num_in = 0
        self._num_out = 0

    def add(self, output: RequestOutput) -> None:
        """One request is finished."""
        self._num_in += len(output.prompt_token_ids)
        self._num_out += sum(len(answer.token_ids) for answer in output.outputs)
        elapsed = self._bar.format_dict["elapsed"]
        if elapsed:
            self._bar.set_postfix_str(
                f"in {self._num_in / elapsed:.0f} tok/s, out {self._num_out / elapsed:.0f} tok/s",
                refresh=False,
            )
        self._bar.update()

    def close(self) -> None:
        """Nothing more comes."""
        self._bar.close()
