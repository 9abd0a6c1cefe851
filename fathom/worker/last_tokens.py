"""LastTokens: the token that each row has sampled last, on the device, where the next step needs it.

With steps that overlap, the host writes a step's inputs before it knows the tokens of the step before. In their place
it writes which slot has them, as a negative number, and the device puts in the tokens:

    input_ids as written    [ 17  4  250 | -3 | -1 ]     a prompt, and two rows that decode, of slots 2 and 0
    slots                   [ 91  8  300 ]
    input_ids as computed   [ 17  4  250 | 300 | 91 ]

A slot belongs to a row of the batch for as long as its request stays (InputBatch.slots).
"""

from __future__ import annotations

import numpy as np
import torch

from fathom.kernels.gpu import to_device
from fathom.worker.input_batch import slot_marker


class LastTokens:
    """The slots of all rows that a batch can have."""

    def __init__(self, max_num_seqs: int, device: torch.device) -> None:
        self._tokens = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self._written: tuple[object, torch.Tensor] = (None, torch.empty(0))

    @torch.inference_mode()
    def put(self, rows: list[int], slots: np.ndarray, token_ids: torch.Tensor) -> None:
        """Take the tokens that were sampled for some rows; NO_TOKEN becomes some token, since nobody reads on there.

        Args:
            rows: the rows. The same list again means the same slots.
            slots: [n] int64, theirs. token_ids: [n] int64, on the device.
        """
        given, places = self._written
        if given is not rows:
            places = to_device(slot_marker(slots), token_ids.device)
            self._written = (rows, places)
        self._tokens[places] = token_ids.clamp(min=0)

    @torch.inference_mode()
    def fill_in(self, input_ids: torch.Tensor) -> None:
        """Put tokens in place of the numbers that lead to them; input_ids: [num_tokens] int64, on the device."""
        # Negative numbers count from the end, here as in `put`.
        torch.where(input_ids < 0, self._tokens[input_ids.clamp(max=-1)], input_ids, out=input_ids)
