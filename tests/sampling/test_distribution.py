"""The law that is sent is the law that was drawn from."""

import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculative.errors import InvalidRequestError
from speculative.sampling import distribution
from speculative.sampling.counter import Stream, row_key
from speculative.sampling.types import SparseLaw
from tests.support.statistics import assert_follows

WEIGHTS = st.lists(st.floats(0.0, 1e300), min_size=1, max_size=60).filter(lambda weights: max(weights) > 0.0)


@settings(deadline=None)
@given(weights=WEIGHTS, tail_mass=st.floats(-1.0, 2.0))
def test_weights_survive_the_wire_and_are_never_zero(weights: list[float], tail_mass: float) -> None:
    law = distribution.quantise(range(100, 100 + len(weights)), weights, tail_mass)
    layout = f"<{len(law.weights)}e"
    assert struct.unpack(layout, struct.pack(layout, *law.weights)) == law.weights
    assert law.weights
    assert min(law.weights) > 0.0
    assert max(law.weights) == 1.0
    assert 0.0 <= law.tail_mass <= 1.0


@settings(deadline=None)
@given(weights=WEIGHTS)
def test_quantising_changes_little(weights: list[float]) -> None:
    top = max(weights)
    law = distribution.quantise(range(len(weights)), weights)
    kept = dict(zip(law.token_ids, law.weights, strict=True))
    for token_id, weight in enumerate(weights):
        assert kept.get(token_id, 0.0) == pytest.approx(weight / top, rel=2**-11, abs=2**-25)


@settings(deadline=None)
@given(weights=WEIGHTS)
def test_probabilities_sum_to_one(weights: list[float]) -> None:
    law = distribution.quantise(range(len(weights)), weights)
    assert math.fsum(distribution.probabilities(law).values()) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("weights", [[], [0.0, 0.0], [math.inf], [math.nan]])
def test_a_law_without_mass_is_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="positive, finite weight"):
        distribution.quantise(range(len(weights)), weights)


def test_the_most_likely_ids_are_kept_and_the_rest_is_the_tail() -> None:
    law = distribution.sparsify({9: 0.1, 4: 0.4, 0: 0.3, 7: 0.1, 2: 0.1}, size=3)
    assert law.token_ids == (4, 0, 2)
    assert law.tail_mass == pytest.approx(0.2)


def test_a_one_hot_law_on_token_zero_draws_token_zero() -> None:
    law = distribution.one_hot(0)
    assert distribution.probabilities(law) == {0: 1.0}
    assert distribution.draw(law, row_key(1, Stream.DRAFT, 2, 2)) == 0


def test_draws_follow_the_quantised_law() -> None:
    """5,000 draws; false-alarm rate 1e-6. The law is cut to half its mass, and is drawn from as it is sent."""
    law = distribution.sparsify({token_id: 1.0 / (token_id + 3) for token_id in range(40)}, size=6)
    drawn = [distribution.draw(law, row_key(5, Stream.DRAFT, position, position)) for position in range(5000)]
    assert_follows(drawn, distribution.probabilities(law))


def test_a_position_drafted_again_in_a_later_round_gets_a_fresh_number() -> None:
    law = distribution.quantise(range(1000), [1.0] * 1000)
    drawn = {distribution.draw(law, row_key(5, Stream.DRAFT, 20, base_len)) for base_len in range(10, 20)}
    assert len(drawn) >= 9


def test_a_token_that_its_law_excludes_is_refused_by_field() -> None:
    law = SparseLaw(token_ids=(3, 5), weights=(1.0, 0.0))
    distribution.check_drawn(3, law, "check.distributions[0]")
    for token_id in (5, 4):
        with pytest.raises(InvalidRequestError, match=r"check\.distributions\[0\]"):
            distribution.check_drawn(token_id, law, "check.distributions[0]")
