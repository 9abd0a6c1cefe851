"""StopStringMatcher: where a stop string ends in a text that arrives piece by piece.

An Aho-Corasick automaton over all stop strings. Its state is the longest end of the text so far that is the
beginning of a stop string: the text that has to be held back. Each character costs a constant, however many
stop strings there are and however long the text is.

The match that is complete first wins, whatever the pieces: of two that end at the same character, the longer.
So a stop string inside another one ("b" in "abc") always comes before it, as if the text came character by
character.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopStringMatcher:
    """Matches one text against stop strings, none of them empty.

    Nodes are prefixes of stop strings, numbered; node 0 is the empty prefix.
    """

    def __init__(self, stops: Sequence[str]):
        self._children: list[dict[str, int]] = [{}]
        self._stop: list[str | None] = [None]
        depth = [0]
        for stop in stops:
            node = 0
            for char in stop:
                child = self._children[node].get(char)
                if child is None:
                    child = self._children[node][char] = len(self._children)
                    self._children.append({})
                    self._stop.append(None)
                    depth.append(depth[node] + 1)
                node = child
            self._stop[node] = stop
        self._fallback = [0] * len(self._children)
        self._pending = depth
        self._link()
        self._node = 0

    @property
    def num_pending(self) -> int:
        """Length of the longest end of the text that may yet grow into a stop string."""
        return self._pending[self._node]

    def advance(self, text: str, report: bool = True) -> tuple[str, int] | None:
        """Read on; the first stop string to be complete and the number of characters of `text` after its end.

        With report=False matches are let pass. A text that ends within a stop string is remembered either
        way.
        """
        node, step, stops = self._node, self._step, self._stop
        for index, char in enumerate(text):
            node = step(node, char)
            stop = stops[node]
            if stop is not None and report:
                return stop, len(text) - index - 1
        self._node = node
        return None

    def _link(self) -> None:
        """Give each node its fallback, the longest proper suffix that is a node too; shorter nodes first."""
        children, fallback = self._children, self._fallback
        queue = deque([0])
        while queue:
            node = queue.popleft()
            for char, child in children[node].items():
                fallback[child] = self._step(fallback[node], char) if node else 0
                queue.append(child)
            if self._stop[node] is None:
                self._stop[node] = self._stop[fallback[node]]
            if not children[node]:  # nothing can follow here: only the suffix may still grow
                self._pending[node] = self._pending[fallback[node]]

    def _step(self, node: int, char: str) -> int:
        """The state after one more character."""
        while node and char not in self._children[node]:
            node = self._fallback[node]
        return self._children[node].get(char, 0)
