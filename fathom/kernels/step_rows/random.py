"""Random numbers that depend on nothing but (seed, choice, position).

Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011) maps a
128-bit counter and a 64-bit key to 128 random bits, without any state to carry along. With the request's seed
as the key and (position, choice) as the counter, the n-th token of a request is drawn with the same number
whatever else is in the batch, and after preemption or a restart.
"""

from __future__ import annotations

import numpy as np

_ROUNDS = 10
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_KEY_STEPS = np.array([[0x9E3779B9], [0xBB67AE85]], np.uint64) * np.arange(_ROUNDS, dtype=np.uint64)[:, None, None]
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)

Words = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def philox4x32(counter: Words, key: tuple[np.ndarray, np.ndarray]) -> Words:
    """Philox4x32-10, elementwise.

    Args:
        counter: four words, each [n] uint64 with values below 2**32.
        key: two such words.

    Returns:
        Four random words of the same kind.
    """
    even, odd = np.stack(counter[0::2]), np.stack(counter[1::2])
    for round_key in (np.stack(key) + _KEY_STEPS) & _LOW:
        products = (_MULTIPLIERS * even)[::-1]
        even, odd = (products >> _32) ^ odd ^ round_key, products & _LOW
    return even[0], odd[0], even[1], odd[1]


def uniform(seeds: np.ndarray, choices: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """One uniform number in [0, 1) per row, with 53 random bits.

    Args:
        seeds: [rows], 64-bit; a negative seed counts modulo 2**64.
        choices: [rows], which of the n answers to its prompt the row is.
        positions: [rows], number of tokens before the one to be drawn.

    Returns:
        [rows] float64.
    """
    high_low = [_halves(values) for values in (seeds, choices, positions)]
    (seed_high, seed_low), (choice_high, choice_low), (position_high, position_low) = high_low
    counter = (position_low, position_high, choice_low, choice_high)
    word0, word1, _, _ = philox4x32(counter, (seed_low, seed_high))
    bits = (word0 >> np.uint64(5)) << np.uint64(26) | (word1 >> np.uint64(6))
    return bits * 2.0**-53


def _halves(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    words = np.asarray(values).astype(np.uint64)
    return words >> _32, words & _LOW
