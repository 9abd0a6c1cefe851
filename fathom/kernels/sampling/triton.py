"""Choosing tokens for GPUs, in Triton, without a sort: `row_search.py` finds the cuts.

What a row keeps are the tokens whose keys are above a cut, and of those that are at the cut as many, lower ids first,
as top_p needs:

    floor  the larger of min_p's bound and the k-th best key
    cut    without top_p just below the floor, and none at the cut is kept; with top_p the key of the last kept token

Tokens at the cut have the same mass, so their number follows from what is missing. Drawing, the row's tile follows
from the tiles' masses, and the token from the masses in that tile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from fathom.kernels import row_search
from fathom.kernels.gpu import power_of_two, to_device
from fathom.kernels.row_search import (
    Masses,
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
    token_of,
)
from fathom.kernels.sampling.settings import NO_TOKEN, DrawSettings

NONE = tl.constexpr(NO_TOKEN)


def truncate(logits: torch.Tensor, rows: np.ndarray, settings: DrawSettings) -> None:
    """See the package's docstring for shapes and rules; a row's logits lie beside each other."""
    assert logits.stride(1) == 1
    if len(rows) == 0:
        return
    chosen, limits = _to_device(logits, rows, settings, np.zeros(len(rows)))
    kept = _find_kept(chosen, limits)
    _truncate[chosen.grid](*chosen.arguments, *kept, chosen.mass_unit, chosen.tiles, **chosen.tiled)


class Choice:
    """See the package's docstring."""

    def __init__(self, rows: np.ndarray, is_random: np.ndarray, settings: DrawSettings, vocab_size: int) -> None:
        best, drawn = np.flatnonzero(~is_random), np.flatnonzero(is_random)
        self._best, self._drawn, self._settings = rows[best], rows[drawn], settings.of(drawn)
        self._places = np.concatenate([best, drawn]).argsort()

    def launch(self, logits: torch.Tensor, uniforms: list[float]) -> torch.Tensor:
        """A token for each row, [n] int64."""
        if not len(self._drawn):
            return best_tokens(logits, self._best)
        drawn = draw_tokens(logits, self._drawn, self._settings, np.array(uniforms))
        if not len(self._best):
            return drawn
        tokens = torch.cat([best_tokens(logits, self._best), drawn])
        return tokens[to_device(self._places, logits.device)]


def best_tokens(logits: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    if len(rows) == 0:
        return torch.empty(0, dtype=torch.int64, device=logits.device)
    settings = DrawSettings.neutral(len(rows), logits.shape[1])
    chosen, _ = _to_device(logits, rows, settings, np.zeros(len(rows)))
    tokens = chosen.new(torch.int64)
    bests = best_of_tiles(chosen)
    _best_tokens[(len(rows),)](bests, chosen.tiles, tokens, TILES=power_of_two(chosen.tiles))
    return tokens


def draw_tokens(logits: torch.Tensor, rows: np.ndarray, settings: DrawSettings, uniforms: np.ndarray) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    if len(rows) == 0:
        return torch.empty(0, dtype=torch.int64, device=logits.device)
    chosen, limits = _to_device(logits, rows, settings, uniforms)
    tokens = chosen.new(torch.int64)
    kept = _find_kept(chosen, limits)
    _draw_tokens[(len(rows),)](
        *chosen.arguments, *kept, limits.uniforms, chosen.mass_unit, chosen.tiles, tokens, **chosen.tiled
    )
    return tokens


class _Limits(NamedTuple):
    """The rows' settings on the device, [n] each; what nobody asks for is None.

    log_min_p: float32. top_k: int64, 0 for none. top_p: float64. uniforms: float64.
    """

    log_min_p: torch.Tensor
    top_k: torch.Tensor | None
    top_p: torch.Tensor | None
    uniforms: torch.Tensor


class _Kept(NamedTuple):
    """What is kept of the rows.

    bests: [n] int32, the best keys. cuts: [n] int32. goals: [n] int64, the mass to keep; 0 for all above the cut.
    above: tiles, int64, the mass above the cut. tied: tiles, int32, the number of tokens at the cut.
    """

    bests: torch.Tensor
    cuts: torch.Tensor
    goals: torch.Tensor
    above: torch.Tensor
    tied: torch.Tensor


def _to_device(
    logits: torch.Tensor, rows: np.ndarray, settings: DrawSettings, uniforms: np.ndarray
) -> tuple[Rows, _Limits]:
    """All that the kernels are told, in one copy."""
    has_top_k = settings.top_k < logits.shape[1]
    host = np.empty((5, len(rows)), np.int64)
    host[0], host[1] = rows, np.where(has_top_k, settings.top_k, 0)
    host[2:4].view(np.float64)[:] = settings.top_p, uniforms
    host[4].view(np.float32).reshape(2, -1)[:] = settings.temperature, settings.log_min_p
    device = to_device(host, logits.device)
    temperatures, log_min_p = device[4].view(torch.float32).view(2, -1)
    top_p, uniforms_there = device[2:4].view(torch.float64)
    return Rows.of(logits, device[0], temperatures), _Limits(
        log_min_p, device[1] if has_top_k.any() else None, top_p if (settings.top_p < 1).any() else None, uniforms_there
    )


def _find_kept(rows: Rows, limits: _Limits) -> _Kept:
    grid, count = (len(rows.numbers),), {"TILES": power_of_two(rows.tiles)}
    best_tiles = best_of_tiles(rows)
    bests, floors, cuts = (rows.new(torch.int32) for _ in range(3))
    kth = bests if limits.top_k is None else find_cuts(rows, limits.top_k)
    _set_floors[grid](
        best_tiles, kth, limits.log_min_p, rows.tiles, bests, floors, cuts, **count, K=limits.top_k is not None
    )
    above, tied = rows.new_tiles(torch.int64), rows.new_tiles(torch.int32)
    goals = torch.zeros_like(rows.numbers)
    measured = (bests, cuts, rows.mass_unit, rows.tiles, above, tied)
    if limits.top_p is not None:
        _measure[rows.grid](*rows.arguments, *measured, TILE=row_search.TILE)
        _set_goals[grid](above, bests, limits.top_p, rows.tiles, goals, **count)
        shares = find_cuts(rows, goals, Masses(bests, floors))
        cuts = torch.where(goals > 0, shares, cuts)
        measured = (bests, cuts, rows.mass_unit, rows.tiles, above, tied)
    _measure[rows.grid](*rows.arguments, *measured, TILE=row_search.TILE)
    return _Kept(bests, cuts, goals, above, tied)


@kernel
def _best_tokens(best_tiles, tiles, tokens, TILES: tl.constexpr):
    index = tl.program_id(0).to(tl.int64)
    best = best_of_row(best_tiles, index, tiles, TILES)
    tl.store(tokens + index, tl.where(is_finite_row(best >> 32), token_of(best), NONE))


@kernel
def _set_floors(best_tiles, kth, log_min_p, tiles, bests, floors, cuts, TILES: tl.constexpr, K: tl.constexpr):
    """The least key that min_p and top_k leave; the cut is just below it."""
    index = tl.program_id(0).to(tl.int64)
    best = (best_of_row(best_tiles, index, tiles, TILES) >> 32).to(tl.int32)
    floor = key_of(float_of(best) + tl.load(log_min_p + index))
    if K:
        floor = tl.maximum(floor, tl.load(kth + index))
    tl.store(bests + index, best)
    tl.store(floors + index, floor)
    tl.store(cuts + index, floor - 1)


@kernel
def _measure(
    logits,
    stride,
    numbers,
    temperatures,
    vocab_size,
    bests,
    cuts,
    unit,
    tiles,
    above,
    tied,
    TILE: tl.constexpr,
):
    """A tile's mass above the cut, and its tokens at the cut."""
    index, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    tokens = tile * TILE + tl.arange(0, TILE)
    values, keys = load_values(logits, stride, numbers, temperatures, vocab_size, index, tokens)
    cut = tl.load(cuts + index)
    masses = mass_of(values, tl.load(bests + index), unit)
    tl.store(above + index * tiles + tile, tl.sum(tl.where(keys > cut, masses, 0), 0))
    tl.store(tied + index * tiles + tile, tl.sum((keys == cut).to(tl.int32), 0))


@kernel
def _set_goals(masses, bests, top_p, tiles, goals, TILES: tl.constexpr):
    """The least mass that is top_p of all; 0 for rows without top_p."""
    index = tl.program_id(0).to(tl.int64)
    total = tl.sum(load_tiles(masses, index, tiles, 0, TILES), 0)
    share = tl.load(top_p + index)
    exact = share * total.to(tl.float64)
    goal = exact.to(tl.int64)
    goal = tl.where(goal.to(tl.float64) < exact, goal + 1, goal)
    goal = tl.minimum(tl.maximum(goal, 1), total)
    tl.store(goals + index, tl.where((share < 1.0) & is_finite_row(tl.load(bests + index)), goal, 0))


@triton.jit
def _load_ties(best, cut, goal, above, tied, index, tiles, unit, TILES: tl.constexpr):
    """([TILES] masses above the cut, a tied token's mass, [TILES] how many of the ties are still wanted, before each
    tile)."""
    masses = load_tiles(above, index, tiles, 0, TILES)
    ties = load_tiles(tied, index, tiles, 0, TILES).to(tl.int64)
    share = tl.maximum(mass_of(float_of(cut), best, unit), 1)
    missing = tl.maximum(goal - tl.sum(masses, 0), 0)
    wanted = (missing + share - 1) // share
    return masses, share, tl.maximum(wanted - (tl.cumsum(ties, 0) - ties), 0)


@kernel
def _draw_tokens(
    logits,
    stride,
    numbers,
    temperatures,
    vocab_size,
    bests,
    cuts,
    goals,
    above,
    tied,
    uniforms,
    unit,
    tiles,
    tokens,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64)
    best, cut, goal = tl.load(bests + index), tl.load(cuts + index), tl.load(goals + index)
    if not is_finite_row(best):
        tl.store(tokens + index, NONE)
        return
    masses, share, wanted = _load_ties(best, cut, goal, above, tied, index, tiles, unit, TILES)
    masses += share * tl.minimum(wanted, load_tiles(tied, index, tiles, 0, TILES))
    total = tl.sum(masses, 0)
    target = tl.minimum((tl.load(uniforms + index) * total.to(tl.float64)).to(tl.int64), total - 1)
    is_passed = tl.cumsum(masses, 0) <= target  # the tiles before the token's
    tile = tl.sum(is_passed.to(tl.int32), 0)
    target -= tl.sum(tl.where(is_passed, masses, 0), 0)
    wanted_here = tl.sum(tl.where(tl.arange(0, TILES) == tile, wanted, 0), 0)
    places = tile * TILE + tl.arange(0, TILE)
    values, keys = load_values(logits, stride, numbers, temperatures, vocab_size, index, places)
    cumulative = tl.cumsum(tl.where(is_kept(keys, cut, wanted_here), mass_of(values, best, unit), 0), 0)
    tl.store(tokens + index, tile * TILE + tl.sum((cumulative <= target).to(tl.int64), 0))


@kernel
def _truncate(
    logits,
    stride,
    numbers,
    temperatures,
    vocab_size,
    bests,
    cuts,
    goals,
    above,
    tied,
    unit,
    tiles,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    index, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    best, cut, goal = tl.load(bests + index), tl.load(cuts + index), tl.load(goals + index)
    _, _, wanted = _load_ties(best, cut, goal, above, tied, index, tiles, unit, TILES)
    wanted_here = tl.sum(tl.where(tl.arange(0, TILES) == tile, wanted, 0), 0)
    places = tile * TILE + tl.arange(0, TILE)
    values, keys = load_values(logits, stride, numbers, temperatures, vocab_size, index, places)
    kept = is_kept(keys, cut, wanted_here) | (not is_finite_row(best))  # a row that is not finite stays so
    row = logits + tl.load(numbers + index) * stride
    tl.store(row + places, tl.where(kept, values, float("-inf")), mask=places < vocab_size)
