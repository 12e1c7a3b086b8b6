"""The law a draft token is drawn from under the rejection rule: few ids, fp16 weights, fixed *before* the draw.

Rejection sampling is exact for whatever law the token was really drawn from (arXiv 2211.17192), and wrong for any
other. So the draft cuts its warped law to its most likely ids, rounds the weights to the wire's precision, draws from
the result, and sends exactly that. Both sides turn weights into probabilities with `probabilities`.
No torch here: an emulated model makes the same laws.
"""

import heapq
import math
import struct
from collections.abc import Mapping, Sequence

from speculative.errors import InvalidRequestError
from speculative.sampling import counter
from speculative.sampling.types import SparseLaw

MAX_LAW_SIZE = 32
"""Ids kept of a warped law: 192 bytes a token on the wire."""


def quantise(token_ids: Sequence[int], weights: Sequence[float], tail_mass: float = 0.0) -> SparseLaw:
    """The law over `token_ids` with `weights` relative to the largest, rounded to fp16; order is kept.

    Ids whose weight rounds to zero (below 3e-8 of the largest) are left out. `tail_mass` is clamped to [0, 1].
    Raises ValueError if no weight is positive.
    """
    top = max(weights, default=0.0)
    if not (0.0 < top < math.inf):
        raise ValueError("a law needs a positive, finite weight")
    rounded = _to_fp16([weight / top for weight in weights])
    kept = [(token_id, weight) for token_id, weight in zip(token_ids, rounded, strict=True) if weight > 0.0]
    return SparseLaw(
        token_ids=tuple(token_id for token_id, _ in kept),
        weights=tuple(weight for _, weight in kept),
        tail_mass=min(1.0, max(0.0, tail_mass)),
    )


def sparsify(law: Mapping[int, float], size: int = MAX_LAW_SIZE) -> SparseLaw:
    """The `size` most likely ids of a warped law (id -> probability), quantised; the lowest ids on a tie."""
    top = heapq.nsmallest(size, law.items(), key=lambda item: (-item[1], item[0]))
    weights = [weight for _, weight in top]
    return quantise([token_id for token_id, _ in top], weights, 1.0 - math.fsum(weights) / math.fsum(law.values()))


def one_hot(token_id: int) -> SparseLaw:
    """The law at temperature 0."""
    return SparseLaw(token_ids=(token_id,), weights=(1.0,))


def probabilities(law: SparseLaw) -> dict[int, float]:
    """Id -> probability, in float64; the same numbers wherever they are computed."""
    total = math.fsum(law.weights)
    return {token_id: weight / total for token_id, weight in zip(law.token_ids, law.weights, strict=True)}


def full_probability(law: SparseLaw, token_id: int) -> float:
    """The probability of one of its ids in the full warped law that `law` was cut from."""
    return probabilities(law)[token_id] * (1.0 - law.tail_mass)


def draw(law: SparseLaw, key: int) -> int:
    """A token distributed as `probabilities(law)`, by the race under row key `key`."""
    return counter.race(key, zip(law.token_ids, law.weights, strict=True))


def check_drawn(token_id: int, law: SparseLaw, field: str) -> None:
    """Raises InvalidRequestError, naming `field`, if `token_id` cannot have been drawn from `law`."""
    if not probabilities(law).get(token_id):
        raise InvalidRequestError(field, f"draft token {token_id} has probability zero under the law it came with")


def _to_fp16(values: Sequence[float]) -> tuple[float, ...]:
    """Each value rounded to the nearest fp16 number, ties to even."""
    layout = f"<{len(values)}e"
    return struct.unpack(layout, struct.pack(layout, *values))
