"""Parallel sampling: n answers to one prompt are n requests, and nothing below this file knows n.

The prompt crosses the process boundary once (the requests refer to it), and is computed once (the first of them
fills the prefix cache for the others).
"""

from __future__ import annotations

from fathom.outputs import CompletionOutput


class ParentRequest:
    """Gathers the answers of a request with n > 1.

    num_cached_tokens: what the first of them found in the prefix cache; the others find its prompt there.
    """

    def __init__(self, request_id: str, n: int) -> None:
        self.request_id = request_id
        self.num_cached_tokens: int | None = None
        self.child_ids = [f"{index}_{request_id}" for index in range(n)]
        self._unfinished = set(self.child_ids)
        self._final: list[CompletionOutput | None] = [None] * n

    def finish(self, child_id: str, output: CompletionOutput, num_cached_tokens: int) -> None:
        """Keep a child's final answer."""
        if self.num_cached_tokens is None or num_cached_tokens < self.num_cached_tokens:
            self.num_cached_tokens = num_cached_tokens
        self._unfinished.discard(child_id)
        self._final[output.index] = output

    @property
    def finished(self) -> bool:
        return not self._unfinished

    @property
    def outputs(self) -> list[CompletionOutput]:
        """The final answers that there are, in order of their index."""
        return [output for output in self._final if output is not None]
