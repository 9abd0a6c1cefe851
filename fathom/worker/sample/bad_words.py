"""bad_words: token sequences that may not be generated."""

from __future__ import annotations

import torch

from fathom.sampling_params import SamplingParams
from fathom.worker.sample.cells import LogitCells
from fathom.worker.sample.interface import BatchUpdate, LogitsProcessor, LogitsProcessorContext
from fathom.worker.sample.rows import RowStates


class _BadWords:
    """One request's bad words, each split into the tokens before its last and the last.

    Words of several tokens are filed under the token before the last, so that a step looks only at words that
    the output's last token can belong to.
    """

    def __init__(self, words: list[list[int]], output_ids: list[int]) -> None:
        self._output_ids = output_ids
        self._always: set[int] = {word[0] for word in words if len(word) == 1}
        self._by_previous: dict[int, list[tuple[list[int], int]]] = {}
        for word in words:
            if len(word) > 1:
                self._by_previous.setdefault(word[-2], []).append((word[:-1], word[-1]))

    def blocked(self) -> set[int]:
        """Tokens that would complete a bad word now."""
        output = self._output_ids
        candidates = self._by_previous.get(output[-1], ()) if output else ()
        return self._always.union(last for prefix, last in candidates if output[-len(prefix) :] == prefix)


class BadWords(LogitsProcessor):
    """Masks the last token of each bad word whose other tokens are the end of the output.

    A word of one token is always masked. The prompt does not count: a word may not begin there.
    """

    reads_output = True

    def __init__(self, context: LogitsProcessorContext, device: torch.device, is_pin_memory: bool) -> None:
        self._vocab_size = context.vocab_size
        self._device = device
        self._bad_words: RowStates[_BadWords] = RowStates()

    def is_argmax_invariant(self) -> bool:
        return False

    @property
    def in_use(self) -> bool:
        return len(self._bad_words) > 0

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is not None:
            self._bad_words.update(batch_update, self._new_state)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if not self._bad_words:
            return logits
        blocked = ((row, bad_words.blocked()) for row, bad_words in self._bad_words.items())
        cells = LogitCells.of(blocked, self._device)
        return logits if cells is None else cells.mask(logits)

    def _new_state(
        self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]
    ) -> _BadWords | None:
        # A tokenizer may know more tokens than the model has logits for; such a word cannot occur anyway.
        words = [word for word in params.bad_words_token_ids if word and max(word) < self._vocab_size]
        return _BadWords(words, output_ids) if words else None
