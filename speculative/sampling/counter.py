"""Random numbers that are pure functions of what they are for: no state, no order, the same bits on every machine.

A *row key* is a 64-bit hash of (seed, stream, absolute position, base length). A *word* is a 31-bit hash of a row key
and a token id; it becomes the Exp(1) number that the token brings to the exponential race at that position
(arXiv 2408.07978). `coupling.py` computes the words of whole rows with torch; this module needs no torch, so that a
model without tensors can race on the same numbers.

Keys mix with the finaliser of SplitMix64 (Steele, Lea, Flood 2014). Words use the multipliers of lowbias32 (Wellons
2018), with one half of the row key going in before each round. Shifts, xors and multiplications modulo 2^32 only.
"""

import enum
import math
from collections.abc import Iterable

_MASK64 = (1 << 64) - 1
_MASK32 = (1 << 32) - 1
_GOLDEN64 = 0x9E3779B97F4A7C15
GOLDEN32 = 0x9E3779B9
MULTIPLIER_1 = 0x7FEB352D
MULTIPLIER_2 = 0x846CA68B
WORD_BITS = 31
WORD_MASK = (1 << WORD_BITS) - 1


class Stream(enum.IntEnum):
    """What a number is for; numbers of different streams are independent."""

    RACE = 0
    """The coupled race, shared by draft and target: keyed by position alone, never by base length."""
    DRAFT = 1
    """The draw of a draft token from its sparse law (rejection rule)."""
    ACCEPT = 2
    """Whether a draft token stands (rejection rule)."""
    RECOVER = 3
    """The draw of a recovered or bonus token (rejection rule)."""
    ADASD = 4
    """Whether a draft token stands (AdaSD's acceptance)."""


def row_key(seed: int, stream: Stream, position: int, base_len: int | None = None) -> int:
    """The 64-bit key of all numbers of one purpose at one absolute position; `seed` counts modulo 2^64.

    `base_len` is the committed length of the round, for numbers that must be fresh when a position is visited again.
    """
    key = _mix64(seed)
    key = _mix64(key ^ stream)
    key = _mix64(key ^ position)
    return _mix64(key ^ (0 if base_len is None else base_len + 1))


def uniform(key: int) -> float:
    """The number in (0, 1) of a row key, for purposes that need one number a position; odd multiples of 2^-53."""
    return ((key >> 12) + 0.5) * 2.0**-52


def word(key: int, token_id: int) -> int:
    """The 31-bit word of a token in a row."""
    x = premixed(token_id) ^ (key & _MASK32)
    x ^= x >> 16
    x = (x * MULTIPLIER_1 + (key >> 32)) & _MASK32
    x ^= x >> 15
    return (x * MULTIPLIER_2) & WORD_MASK


def premixed(token_id: int) -> int:
    """A fixed 32-bit scramble of the id, so that neighbouring ids have nothing in common when the key comes in."""
    x = (token_id + GOLDEN32) & _MASK32
    x ^= x >> 16
    x = (x * MULTIPLIER_1) & _MASK32
    x ^= x >> 15
    x = (x * MULTIPLIER_2) & _MASK32
    return x ^ (x >> 16)


def exponential(key: int, token_id: int) -> float:
    """The Exp(1) number of a token in a row: `-ln(1 - r)`, `r = (word + 1/2) / 2^31`; never 0, never infinite."""
    return -math.log1p(-(word(key, token_id) + 0.5) * 2.0**-WORD_BITS)


def race(key: int, weights: Iterable[tuple[int, float]]) -> int:
    """The id that wins `argmin exponential / weight` among (token id, weight) pairs; the lowest id on a tie.

    It is distributed as `weight / sum of weights` (weights need no normalising). Zero weights never win. Compared as
    `ln exponential - ln weight` in float64, as the torch version does.
    Raises ValueError if no weight is positive.
    """
    best = min(
        ((math.log(exponential(key, token_id)) - math.log(w), token_id) for token_id, w in weights if w > 0.0),
        default=None,
    )
    if best is None:
        raise ValueError("a race needs at least one positive weight")
    return best[1]


def _mix64(value: int) -> int:
    """One step of SplitMix64: a bijection of 64 bits in which every input bit reaches every output bit."""
    z = (value + _GOLDEN64) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)
