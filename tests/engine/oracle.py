"""What transformers says about an answer: one forward over prompt and answer checks every greedy choice in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


@torch.no_grad()
def reference_logprobs(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> torch.Tensor:
    """[len(answer), vocab] float32: the model's log-probabilities at each position of the answer."""
    ids = torch.tensor([[*prompt, *answer]])
    logits = model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    return logits.float().log_softmax(-1)


def check_greedy(model: Any, prompt: Sequence[int], answer: Sequence[int], logprobs: Any = None) -> None:
    """Every token of the answer is the reference's best, and its logprobs are the reference's to 1e-4."""
    reference = reference_logprobs(model, prompt, answer)
    assert reference.argmax(-1).tolist() == list(answer)
    if logprobs is None:
        return
    for position, entries in enumerate(logprobs):
        for token_id, entry in entries.items():
            assert abs(entry.logprob - reference[position, token_id].item()) < 1e-4
            assert entry.rank == 1 + int((reference[position] > reference[position, token_id]).sum())
