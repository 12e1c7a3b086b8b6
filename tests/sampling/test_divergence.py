"""Divergences from sparse laws: the true values where the law is whole, lower bounds where it is not."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculative.sampling.distribution import sparsify
from speculative.sampling.divergence import js_distance, kl_divergence_nats
from speculative.sampling.types import SparseLaw

LAWS = st.lists(st.floats(1e-4, 1.0), min_size=2, max_size=12).map(
    lambda weights: [weight / math.fsum(weights) for weight in weights]
)


def whole(probs: list[float]) -> SparseLaw:
    return SparseLaw(tuple(range(len(probs))), tuple(probs))


def true_kl(target: list[float], draft: list[float]) -> float:
    return math.fsum(t * math.log(t / d) for t, d in zip(target, draft, strict=True) if t > 0.0)


def true_js_distance(target: list[float], draft: list[float]) -> float:
    mean = [(t + d) / 2.0 for t, d in zip(target, draft, strict=True)]
    return math.sqrt(max(0.0, (true_kl(target, mean) + true_kl(draft, mean)) / 2.0 / math.log(2.0)))


def test_known_values() -> None:
    target, draft = [0.5, 0.25, 0.25], [0.25, 0.5, 0.25]
    assert kl_divergence_nats(target, whole(draft)) == pytest.approx(0.25 * math.log(2.0))
    assert js_distance(target, whole(draft)) == pytest.approx(true_js_distance(target, draft))
    assert js_distance(target, whole(draft)) == pytest.approx(0.2475, abs=1e-4)


@settings(deadline=None)
@given(LAWS, LAWS)
def test_a_whole_law_gives_the_true_values(target: list[float], draft: list[float]) -> None:
    size = min(len(target), len(draft))
    target = [prob / math.fsum(target[:size]) for prob in target[:size]]
    draft = [prob / math.fsum(draft[:size]) for prob in draft[:size]]
    assert kl_divergence_nats(target, whole(draft)) == pytest.approx(true_kl(target, draft), abs=1e-6)
    assert js_distance(target, whole(draft)) == pytest.approx(true_js_distance(target, draft), abs=1e-4)


@settings(deadline=None)
@given(LAWS, st.permutations(range(12)), st.integers(1, 12))
def test_a_cut_law_gives_a_lower_bound(target: list[float], order: list[int], size: int) -> None:
    draft = [target[index] for index in order if index < len(target)]
    sparse = sparsify(dict(enumerate(draft)), size)
    head = [target[token_id] for token_id in sparse.token_ids]
    assert kl_divergence_nats(head, sparse) <= true_kl(target, draft) + 2e-3  # fp16 weights
    assert js_distance(head, sparse) <= true_js_distance(target, draft) + 2e-3


def test_the_bound_is_tight_when_tails_are_small() -> None:
    target = [0.7, 0.2, 0.0995, 0.0005]
    draft = [0.5, 0.3, 0.199, 0.001]
    sparse = sparsify(dict(enumerate(draft)), 3)
    assert kl_divergence_nats(target[:3], sparse) == pytest.approx(true_kl(target, draft), abs=1e-3)


def test_equal_laws_are_at_distance_zero_and_disjoint_ones_at_one() -> None:
    assert kl_divergence_nats([0.6, 0.4], whole([0.6, 0.4])) == pytest.approx(0.0, abs=1e-9)
    assert js_distance([0.6, 0.4], whole([0.6, 0.4])) == pytest.approx(0.0, abs=1e-9)
    assert js_distance([0.0, 0.0], whole([0.6, 0.4])) == 1.0


def test_zero_probabilities_are_clamped() -> None:
    """A one-hot draft that is wrong: about ln(1e8) = 18.4 nats, the value that says "saturated"."""
    assert kl_divergence_nats([0.0], SparseLaw((0,), (1.0,))) == pytest.approx(math.log(1e8), rel=1e-6)
