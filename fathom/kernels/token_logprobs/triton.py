"""Scores of tokens for GPUs, in Triton, without a sort but of the k best.

`row_search.py` finds the k-th best key. What is above it, and of its ties the lower ids, is written together in the
order of ids, and those k are sorted.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from fathom.kernels import row_search
from fathom.kernels.gpu import to_device
from fathom.kernels.row_search import (
    Rows,
    best_of_row,
    best_of_tiles,
    find_cuts,
    float_of,
    is_finite_row,
    is_kept,
    kernel,
    key_of,
    load_tiles,
    load_values,
    mass_of,
)
from fathom.kernels.token_logprobs.scores import TokenScores


def token_logprobs(
    logits: torch.Tensor, rows: np.ndarray, targets: torch.Tensor, k: int, normalised: bool
) -> TokenScores:
    """See the package's docstring for shapes and rules."""
    num_rows, width = len(rows), 1 + k
    host = np.empty((3, num_rows), np.int64)
    host[0], host[1] = rows, k
    host[2].view(np.float32)[:num_rows] = 1.0
    numbers, counts, ones = to_device(host, logits.device)
    there = Rows.of(logits, numbers, ones.view(torch.float32)[:num_rows])
    found = TokenScores.empty(num_rows, k, logits.device)
    token_ids, scores, ranks = found.views()
    token_ids[:, 0] = targets
    if k > 0:
        _best(there, counts, token_ids[:, 1:])
    masses, above = there.new_tiles(torch.int64), there.new_tiles(torch.int32)
    bests = best_of_tiles(there)
    _measure[there.grid](
        *there.arguments, token_ids, width, bests, there.mass_unit, there.tiles, masses, above, **there.tiled
    )
    _score[(num_rows, triton.cdiv(width, row_search.TILE))](
        *there.arguments,
        token_ids,
        width,
        bests,
        there.mass_unit,
        there.tiles,
        masses,
        above,
        scores,
        ranks,
        **there.tiled,
        NORMALISED=normalised,
    )
    return found


def _best(rows: Rows, counts: torch.Tensor, token_ids: torch.Tensor) -> None:
    """Write the k best tokens of each row, best first: [n, k], for counts [n] of k."""
    shape, device = token_ids.shape, token_ids.device
    kth = find_cuts(rows, counts)
    above, tied = rows.new_tiles(torch.int32), rows.new_tiles(torch.int32)
    _count[rows.grid](*rows.arguments, kth, rows.tiles, above, tied, TILE=row_search.TILE)
    by_id = torch.empty(shape, dtype=torch.int32, device=device)
    values = torch.empty(shape, dtype=torch.float32, device=device)
    _compact[rows.grid](*rows.arguments, kth, rows.tiles, above, tied, shape[1], by_id, values, **rows.tiled)
    token_ids.copy_(by_id.gather(1, values.sort(dim=1, descending=True, stable=True).indices))


@kernel
def _count(logits, stride, numbers, temperatures, vocab_size, kth, tiles, above, tied, TILE: tl.constexpr):
    """How many tokens of a tile are above the k-th best, and how many tie with it."""
    index, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    tokens = tile * TILE + tl.arange(0, TILE)
    _, keys = load_values(logits, stride, numbers, temperatures, vocab_size, index, tokens)
    cut = tl.load(kth + index)
    tl.store(above + index * tiles + tile, tl.sum((keys > cut).to(tl.int32), 0))
    tl.store(tied + index * tiles + tile, tl.sum((keys == cut).to(tl.int32), 0))


@kernel
def _compact(
    logits,
    stride,
    numbers,
    temperatures,
    vocab_size,
    kth,
    tiles,
    above,
    tied,
    k,
    token_ids,
    values_kept,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    """A tile's share of the k best, behind those of the tiles before it."""
    index, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    larger = load_tiles(above, index, tiles, 0, TILES)
    ties = load_tiles(tied, index, tiles, 0, TILES)
    is_before = tl.arange(0, TILES) < tile
    wanted = k - tl.sum(larger, 0)  # of the ties, in the whole row
    ties_before = tl.sum(tl.where(is_before, ties, 0), 0)
    before = tl.sum(tl.where(is_before, larger, 0), 0) + tl.minimum(ties_before, wanted)
    tokens = tile * TILE + tl.arange(0, TILE)
    values, keys = load_values(logits, stride, numbers, temperatures, vocab_size, index, tokens)
    kept = is_kept(keys, tl.load(kth + index), wanted - ties_before)
    place = index * k + before + tl.cumsum(kept.to(tl.int32), 0) - 1
    tl.store(token_ids + place, tokens, mask=kept)
    tl.store(values_kept + place, values, mask=kept)


@kernel
def _measure(
    logits,
    stride,
    numbers,
    temperatures,
    vocab_size,
    token_ids,
    width,
    bests,
    unit,
    tiles,
    masses,
    above,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    """A tile's mass, and how many of its tokens are above the target."""
    index, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    best = (best_of_row(bests, index, tiles, TILES) >> 32).to(tl.int32)
    target = tl.load(logits + tl.load(numbers + index) * stride + tl.load(token_ids + index * width))
    tokens = tile * TILE + tl.arange(0, TILE)
    values, keys = load_values(logits, stride, numbers, temperatures, vocab_size, index, tokens)
    tl.store(masses + index * tiles + tile, tl.sum(mass_of(values, best, unit), 0))
    tl.store(above + index * tiles + tile, tl.sum((keys > key_of(target)).to(tl.int32), 0))


@kernel
def _score(
    logits,
    stride,
    numbers,
    temperatures,
    vocab_size,
    token_ids,
    width,
    bests,
    unit,
    tiles,
    masses,
    above,
    scores,
    ranks,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    NORMALISED: tl.constexpr,
):
    """Scores of some of a row's tokens, and the target's rank."""
    index, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if part == 0:
        tl.store(ranks + index, tl.sum(load_tiles(above, index, tiles, 0, TILES), 0) + 1)
    place = part * TILE + tl.arange(0, TILE)
    inside = place < width
    tokens = tl.load(token_ids + index * width + place, mask=inside, other=0)
    values = tl.load(logits + tl.load(numbers + index) * stride + tokens)
    best = (best_of_row(bests, index, tiles, TILES) >> 32).to(tl.int32)
    if NORMALISED:
        total = tl.sum(load_tiles(masses, index, tiles, 0, TILES), 0).to(tl.float64)
        values = values - float_of(best) - tl.log(total / unit).to(tl.float32)
    values = tl.where(is_finite_row(best), values, float("nan"))
    tl.store(scores + index * width + place, values, mask=inside)
