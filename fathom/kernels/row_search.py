"""Cuts through rows of logits without a sort, in Triton: the k-th best value, or the one that ends the best share.

The bits of a float32, with those of negative numbers turned round, are an integer that orders as the float does: its
key. A cut is the largest key at which a total over the tokens that reach it (their number, or their mass) is still as
large as a goal. It is found four bits a pass, the highest first:

    key   [ bits known | j | zeros ]    j = 0..15: of the 16 bounds, the largest whose total reaches the goal

A row is cut into tiles of TILE tokens, each of them a program's, so that a single long row keeps many processors busy.
A pass leaves its tiles' totals in memory, and each program of the next begins with adding up those of its row.

All totals are integers, so they are the same in whatever order they are added. A token's mass is exp(value - best) in
units of 2^-mass_bits, as fine as the sum of a vocabulary allows; what is less than a unit (2^-44 with 150,000 tokens)
has none.

    values  the rows' logits / temperature
    tiles   [n, tiles]: a number for each tile, of each row
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from fathom.kernels.gpu import power_of_two

TILE = 2048
"""Tokens of a tile."""
CHUNK = 256
"""Tokens that a pass compares with its bounds at once."""
PASS_BITS = 4
"""Bits of a key that a pass finds; a divisor of 32."""

kernel = partial(
    triton.jit,
    do_not_specialize=["num_rows", "number", "width", "k"],
    do_not_specialize_on_alignment=[
        *("numbers", "temperatures", "goals", "kth", "log_min_p", "top_p", "uniforms"),
        *("token_ids", "scores", "ranks"),
    ],
)
"""Makes a kernel; what changes from step to step has none of them compiled anew."""

LOWEST = tl.constexpr(-(2**31))
"""Below every number's key; that of what is no token."""
NAN_KEY = tl.constexpr(2**31 - 1)
INF_KEY = tl.constexpr(0x7F800000)
MINUS_INF_KEY = tl.constexpr(-0x7F800001)


class Rows(NamedTuple):
    """Some rows of logits, on the device: what every kernel here takes first.

    logits: [..., vocab_size] float32, a row's numbers beside each other. numbers: [n] int64, which rows.
    temperatures: [n] float32.
    """

    logits: torch.Tensor
    numbers: torch.Tensor
    temperatures: torch.Tensor

    @classmethod
    def of(cls, logits: torch.Tensor, numbers: torch.Tensor, temperatures: torch.Tensor) -> Rows:
        """Of logits that may lie apart: those are copied."""
        return cls(logits if logits.stride(1) == 1 else logits.contiguous(), numbers, temperatures)

    @property
    def vocab_size(self) -> int:
        return self.logits.shape[1]

    @property
    def tiles(self) -> int:
        """Tiles of a row."""
        return triton.cdiv(self.vocab_size, TILE)

    @property
    def grid(self) -> tuple[int, int]:
        """A program for each tile."""
        return len(self.numbers), self.tiles

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The kernels' first parameters: logits, stride, numbers, temperatures, vocab_size."""
        return self.logits, self.logits.stride(0), self.numbers, self.temperatures, self.vocab_size

    @property
    def tiled(self) -> dict[str, int]:
        """The kernels' constants."""
        return {"TILE": TILE, "TILES": power_of_two(self.tiles)}

    @property
    def mass_unit(self) -> float:
        """2^mass_bits: the mass of a row's best token. A vocabulary of such tokens is at most 2^62."""
        return 2.0 ** (62 - (self.vocab_size - 1).bit_length())

    def new_tiles(self, dtype: torch.dtype) -> torch.Tensor:
        """A number for each tile of each row, not yet written."""
        return torch.empty(self.grid, dtype=dtype, device=self.logits.device)

    def new(self, dtype: torch.dtype) -> torch.Tensor:
        """A number for each row, not yet written."""
        return torch.empty(len(self.numbers), dtype=dtype, device=self.logits.device)


class Masses(NamedTuple):
    """What a search for a share of the mass needs: the rows' best keys and the least keys that count, int32 [n]."""

    bests: torch.Tensor
    floors: torch.Tensor


def best_of_tiles(rows: Rows) -> torch.Tensor:
    """Tiles, int64: the key of the largest value and, in the lower bits, the first token that has it; see `token_of`.

    NaN counts as the largest value.
    """
    bests = rows.new_tiles(torch.int64)
    _best_of_tiles[rows.grid](*rows.arguments, bests, rows.tiles, TILE=TILE)
    return bests


def find_cuts(rows: Rows, goals: torch.Tensor, masses: Masses | None = None) -> torch.Tensor:
    """The largest keys, int32 [n], at which the tokens that reach them are as many, or have as much mass, as `goals`.

    Args:
        rows: Which rows.
        goals: [n] int64, numbers of tokens, or masses in the rows' units; LOWEST is found where it is 0.
        masses: Given if mass is what is added up.
    """
    num_rows, device, passes = len(goals), goals.device, 32 // PASS_BITS
    lows = torch.empty(passes, num_rows, dtype=torch.int32, device=device)
    shape = (2, num_rows, rows.tiles, 1 << PASS_BITS)
    totals = torch.empty(shape, dtype=torch.int32 if masses is None else torch.int64, device=device)
    bests, floors = masses or (goals, goals)
    for number in range(passes):
        _narrow[rows.grid](
            *rows.arguments,
            goals,
            bests,
            floors,
            rows.mass_unit,
            lows,
            totals,
            num_rows,
            rows.tiles,
            number,
            **rows.tiled,
            CHUNK=CHUNK,
            BITS=PASS_BITS,
            MASS=masses is not None,
        )
    cuts = rows.new(torch.int32)
    constants = {"TILES": power_of_two(rows.tiles), "BITS": PASS_BITS}
    _finish[(num_rows,)](goals, lows, totals, num_rows, rows.tiles, passes, cuts, **constants)
    return cuts


@triton.jit
def key_of(value):
    """The integer that orders as the float does; one for both zeros."""
    bits = value.to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(value != value, NAN_KEY, tl.where(value == 0.0, 0, key))


@triton.jit
def float_of(key):
    """The float with this key."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def is_finite_row(best):
    """Whether a row with this best key has neither NaN nor +inf, and something above -inf."""
    return (best > MINUS_INF_KEY) & (best < INF_KEY)


@triton.jit
def token_of(best):
    """The token of what `best_of_tiles` found."""
    return NAN_KEY - (best & NAN_KEY)


@triton.jit
def load_values(logits, stride, numbers, temperatures, vocab_size, index, tokens):
    """(values, keys) of some tokens of the row that is number `index` of those meant."""
    inside = tokens < vocab_size
    row = logits + tl.load(numbers + index) * stride
    values = tl.div_rn(tl.load(row + tokens, mask=inside, other=float("-inf")), tl.load(temperatures + index))
    return values, tl.where(inside, key_of(values), LOWEST)


@triton.jit
def load_tiles(tiles_of_rows, index, tiles, other, TILES: tl.constexpr):
    """[TILES]: one row's numbers, and `other` where there is no tile."""
    tile = tl.arange(0, TILES)
    return tl.load(tiles_of_rows + index * tiles + tile, mask=tile < tiles, other=other)


@triton.jit
def best_of_row(best_tiles, index, tiles, TILES: tl.constexpr):
    """What `best_of_tiles` found in all of one row: the key is its upper half, the token is `token_of` it."""
    lowest = tl.full([], LOWEST, tl.int64) << 32
    return tl.max(load_tiles(best_tiles, index, tiles, lowest, TILES), 0)


@triton.jit
def is_kept(keys, cut, wanted):
    """Which tokens of a tile are above the cut, or among the first `wanted` at it."""
    is_tied = (keys == cut).to(tl.int32)
    return (keys > cut) | ((is_tied > 0) & (tl.cumsum(is_tied, 0) <= wanted))


@triton.jit
def mass_of(values, best, unit):
    """exp(value - best) in units, int64; the product with a power of two is exact."""
    return (tl.exp(values - float_of(best)) * unit).to(tl.int64)


@kernel
def _best_of_tiles(logits, stride, numbers, temperatures, vocab_size, bests, tiles, TILE: tl.constexpr):
    index, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    tokens = tile * TILE + tl.arange(0, TILE)
    _, keys = load_values(logits, stride, numbers, temperatures, vocab_size, index, tokens)
    best = tl.max((keys.to(tl.int64) << 32) | (NAN_KEY - tokens), 0)
    tl.store(bests + index * tiles + tile, best)


@triton.jit
def _low(goal, lows, totals, index, num_rows, tiles, number, TILES: tl.constexpr, BITS: tl.constexpr):
    """What passes 0 to number - 1 have found of the key, int64, the bits that are not known zero."""
    low = tl.full([], LOWEST, tl.int64)
    if number > 0:
        tile, bound = tl.arange(0, TILES), tl.arange(0, 1 << BITS)
        place = (((number - 1) % 2) * num_rows + index) * tiles + tile
        is_total = (tile < tiles)[:, None] & (bound > 0)[None, :]  # at the first bound it is known to suffice
        found = tl.load(totals + (place[:, None] << BITS) + bound[None, :], mask=is_total, other=0)
        reached = tl.sum((tl.sum(found.to(tl.int64), 0) >= goal).to(tl.int64), 0)
        low = tl.load(lows + (number - 1) * num_rows + index).to(tl.int64) + (reached << (32 - BITS * number))
    return low


@kernel
def _narrow(
    logits,
    stride,
    numbers,
    temperatures,
    vocab_size,
    goals,
    bests,
    floors,
    unit,
    lows,
    totals,
    num_rows,
    tiles,
    number,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    CHUNK: tl.constexpr,
    BITS: tl.constexpr,
    MASS: tl.constexpr,
):
    """Pass `number`: a tile's totals at each of 16 bounds."""
    index, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    goal = tl.load(goals + index)
    if goal <= 0:
        return
    low = _low(goal, lows, totals, index, num_rows, tiles, number, TILES, BITS)
    if tile == 0:
        tl.store(lows + number * num_rows + index, low.to(tl.int32))
    bound = tl.arange(0, 1 << BITS)
    bounds = (low + (bound.to(tl.int64) << (32 - BITS - BITS * number))).to(tl.int32)
    sums = tl.zeros([1 << BITS, CHUNK], totals.dtype.element_ty)
    for start in range(tile * TILE, tl.minimum((tile + 1) * TILE, vocab_size), CHUNK):
        tokens = start + tl.arange(0, CHUNK)
        values, keys = load_values(logits, stride, numbers, temperatures, vocab_size, index, tokens)
        if MASS:
            masses = mass_of(values, tl.load(bests + index), unit)
            sums += tl.where(keys[None, :] >= tl.maximum(bounds, tl.load(floors + index))[:, None], masses[None, :], 0)
        else:
            sums += (keys[None, :] >= bounds[:, None]).to(tl.int32)
    place = ((number % 2) * num_rows + index) * tiles + tile
    tl.store(totals + (place << BITS) + bound, tl.sum(sums, 1))


@kernel
def _finish(goals, lows, totals, num_rows, tiles, number, cuts, TILES: tl.constexpr, BITS: tl.constexpr):
    index = tl.program_id(0).to(tl.int64)
    goal = tl.load(goals + index)
    cut = tl.full([], LOWEST, tl.int64)
    if goal > 0:
        cut = _low(goal, lows, totals, index, num_rows, tiles, number, TILES, BITS)
    tl.store(cuts + index, cut.to(tl.int32))
