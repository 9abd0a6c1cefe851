"""Scores of tokens in plain torch."""

from __future__ import annotations

import numpy as np
import torch

from fathom.kernels.slices import row_slices
from fathom.kernels.token_logprobs.scores import TokenScores


def token_logprobs(
    logits: torch.Tensor, rows: np.ndarray, targets: torch.Tensor, k: int, normalised: bool
) -> TokenScores:
    """See the package's docstring for shapes and rules."""
    found = TokenScores.empty(len(rows), k, logits.device)
    all_token_ids, all_scores, ranks = found.views()
    for piece in row_slices((len(rows), logits.shape[1]), logits.device):
        chosen = logits[torch.from_numpy(rows[piece]).to(logits.device)]
        token_ids = targets[piece].unsqueeze(1)
        above = chosen > chosen.gather(1, token_ids)
        token_ids = torch.cat([token_ids, _best(chosen, k)], dim=1)
        scores = chosen.log_softmax(dim=-1) if normalised else chosen
        ranks[piece] = above.sum(dim=-1) + 1
        all_scores[piece] = scores.gather(1, token_ids)
        all_token_ids[piece] = token_ids
    return found


def _best(logits: torch.Tensor, k: int) -> torch.Tensor:
    """The k best tokens of each row, [rows, k]; of equal ones the lower ids, which topk alone does not promise."""
    if k == 0:
        return torch.empty(logits.shape[0], 0, dtype=torch.int64, device=logits.device)
    logits = logits.nan_to_num(-torch.inf, torch.inf, -torch.inf)  # so that every row has a k-th
    kth = logits.topk(k, dim=-1).values[:, -1:]
    above, equal = logits > kth, logits == kth
    among_first = equal.cumsum(dim=-1) <= k - above.sum(dim=-1, keepdim=True)
    kept = above | equal & among_first
    token_ids = kept.nonzero()[:, 1].view(logits.shape[0], k)
    order = logits.gather(1, token_ids).sort(dim=-1, descending=True, stable=True).indices
    return token_ids.gather(1, order)
