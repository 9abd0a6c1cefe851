"""The loop of a contender's script: a line of JSON comes in, is answered, and the time goes out.

Only the standard library: this runs in every rival's environment. Standard output is for the answers alone; whatever
the engine prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

Generate = Callable[[list[list[int]], list[int]], list[int]]
"""Answers prompts of token ids, greedily and past any end-of-sequence; returns the tokens of each answer, counted."""

_answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def serve(generate: Generate) -> None:
    """Answer until the input ends."""
    _say({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        start = time.perf_counter()
        output_lens = generate(request["prompts"], request["output_lens"])
        _say({"seconds": time.perf_counter() - start, "output_lens": output_lens})


def _say(answer: dict) -> None:
    _answers.write(json.dumps(answer) + "\n")
    _answers.flush()
