"""From token ids to the text of one answer: incremental decode, stop strings, what may be shown when.

    token ids --TextStream--> text --StopStringMatcher--> released | held back | cut
                                                             |
                                                    text, take_delta()

Text is released as soon as it is certain: no later token can change it, and it cannot be the start of a stop
string.
"""

from __future__ import annotations

from collections.abc import Sequence

from fathom.frontend.stop_strings import StopStringMatcher
from fathom.frontend.tokenizer.tokenizer import Tokenizer
from fathom.sampling_params import SamplingParams


class IncrementalDetokenizer:
    """The text of one answer as its tokens arrive.

    Joined, the deltas equal `tokenizer.decode(ids, skip_special_tokens=...)` of all ids up to a stop, but for
    the space that some tokenizers strip from the start of a text: it stays if the prompt has text before it
    (see TextStream). No spaces are put between special tokens, so `spaces_between_special_tokens` changes
    nothing.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, prompt_token_ids: Sequence[int]):
        self._stream = tokenizer.text_stream(prompt_token_ids, params.skip_special_tokens)
        self._matcher = StopStringMatcher(params.stop_strings) if params.stop_strings else None
        self._include_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._num_tokens = 0
        self._held = ""
        self._released: list[str] = []  # all of the text
        self._untaken: list[str] = []  # the end of it that take_delta has not given out

    @staticmethod
    def create(
        tokenizer: Tokenizer | None, params: SamplingParams, prompt_token_ids: Sequence[int] | None
    ) -> IncrementalDetokenizer | NoDetokenizer:
        """The detokenizer for a request; one without text if detokenize is off or there is no tokenizer."""
        if tokenizer is None or not params.detokenize:
            return NoDetokenizer()
        return IncrementalDetokenizer(tokenizer, params, prompt_token_ids or ())

    @property
    def text(self) -> str:
        """All text so far that may be shown."""
        self._released = ["".join(self._released)]
        return self._released[0]

    @property
    def num_tokens(self) -> int:
        """Number of ids read, up to and with the one that completed a stop string; later ids do not count."""
        return self._num_tokens

    def update(
        self, new_token_ids: Sequence[int], *, finished: bool = False, stop_terminated: bool = False
    ) -> str | None:
        """Take in new ids; the stop string that they complete, if any, after which nothing may follow.

        Args:
            finished: no more ids will come: whatever was held back is released.
            stop_terminated: the last id is the end-of-sequence or stop token that ended the answer; its own
                text is left out unless include_stop_str_in_output. Implies finished.
        """
        shown = new_token_ids
        if stop_terminated and not self._include_stop:
            shown = new_token_ids[:-1]
        if self._matcher is None:
            self._num_tokens += len(new_token_ids)
            self._release(self._stream.push(shown))
            if finished or stop_terminated:
                self._release(self._stream.finish())
            return None
        stop = self._update_with_stops(self._matcher, shown, finished or stop_terminated)
        if stop is None:
            self._num_tokens += len(new_token_ids) - len(shown)
        return stop

    def take_delta(self) -> str:
        """The text that has been released since the last call."""
        delta = "".join(self._untaken)
        self._untaken.clear()
        return delta

    def _update_with_stops(self, matcher: StopStringMatcher, token_ids: Sequence[int], finished: bool) -> str | None:
        """Id by id, so that the outcome does not depend on how many ids came at once."""
        for token_id in token_ids:
            self._num_tokens += 1
            stop = self._match(matcher, self._stream.push((token_id,)))
            if stop is not None:
                return stop
        if finished:
            stop = self._match(matcher, self._stream.finish())
            self._release(self._held)
            self._held = ""
            return stop
        return None

    def _match(self, matcher: StopStringMatcher, new_text: str) -> str | None:
        """Release what of `held + new_text` is certain, and hold back the rest."""
        if not new_text:
            return None
        text = self._held + new_text
        match = matcher.advance(new_text, report=self._num_tokens > self._min_tokens)
        if match is None:
            keep = matcher.num_pending
        else:
            stop, num_after = match
            keep = num_after if self._include_stop else num_after + len(stop)
        cut = len(text) - keep
        self._release(text[:cut])
        self._held = text[cut:] if match is None else ""
        return None if match is None else match[0]

    def _release(self, text: str) -> None:
        if text:
            self._released.append(text)
            self._untaken.append(text)


class NoDetokenizer:
    """Counts tokens and has no text: detokenize=False."""

    text = ""

    def __init__(self) -> None:
        self.num_tokens = 0

    def update(
        self, new_token_ids: Sequence[int], *, finished: bool = False, stop_terminated: bool = False
    ) -> str | None:
        """Count the ids; nothing can stop them."""
        self.num_tokens += len(new_token_ids)
        return None

    def take_delta(self) -> str:
        """Always empty."""
        return ""
