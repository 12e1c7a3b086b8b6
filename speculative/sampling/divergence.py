"""How far the draft's law is from the target's, where the draft's is known only by its likeliest ids.

Both laws are merged alike: one entry for each id of the sparse law, and one bucket for all others. The draft's entries
are its weights scaled to `1 - tail_mass`, its bucket is `tail_mass`: that is the full warped law, which the policies
want, not the law that was drawn from. Merging can only bring laws closer (data processing), so every result is a
lower bound of the true value, tight when both tails are small. No torch here.
"""

import math
from collections.abc import Sequence

from speculative.sampling.types import SparseLaw

LEAST_PROBABILITY = 1e-8
"""Probabilities are clamped to this from below before logarithms are taken (arXiv 2509.01083, the authors' code)."""


def kl_divergence_nats(target_probs: Sequence[float], draft: SparseLaw) -> float:
    """KL(target || draft) in nats (arXiv 2509.01083); `target_probs[i]` is the target's of `draft.token_ids[i]`."""
    pairs = _merged(target_probs, draft)
    clamped = ((max(t, LEAST_PROBABILITY), max(d, LEAST_PROBABILITY)) for t, d in pairs)
    return max(0.0, math.fsum(t * math.log(t / d) for t, d in clamped))


def js_distance(target_probs: Sequence[float], draft: SparseLaw) -> float:
    """Square root of the Jensen-Shannon divergence in base 2 (arXiv 2512.11280): 0 for equal laws, 1 for disjoint ones.

    `target_probs[i]` is the target's probability of `draft.token_ids[i]`.
    """
    divergence = math.fsum(_half_divergence(t, d) + _half_divergence(d, t) for t, d in _merged(target_probs, draft))
    return math.sqrt(min(1.0, max(0.0, divergence)))


def _merged(target_probs: Sequence[float], draft: SparseLaw) -> list[tuple[float, float]]:
    """(target, draft) for each id of the sparse law, then for the bucket."""
    scale = (1.0 - draft.tail_mass) / math.fsum(draft.weights)
    pairs = [(target, weight * scale) for target, weight in zip(target_probs, draft.weights, strict=True)]
    return [*pairs, (max(0.0, 1.0 - math.fsum(target_probs)), draft.tail_mass)]


def _half_divergence(prob: float, other: float) -> float:
    """`prob / 2 * log2(prob / mean of both)`."""
    return prob / 2.0 * math.log2(2.0 * prob / (prob + other)) if prob > 0.0 else 0.0
