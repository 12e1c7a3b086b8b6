"""The statistical checks catch what they are for, at the sample sizes the tests use."""

import random
from collections import Counter

import pytest

from tests.support.statistics import (
    assert_follows,
    assert_rate,
    chi_square_p_value,
    frequencies,
    total_variation,
)

LAW = {0: 0.5, 1: 0.3, 2: 0.2}


def samples(law: dict[int, float], number: int) -> list[int]:
    return random.Random(7).choices(list(law), list(law.values()), k=number)


def test_samples_of_the_law_pass() -> None:
    assert_follows(samples(LAW, 20_000), LAW)


def test_a_law_three_points_off_fails() -> None:
    with pytest.raises(AssertionError, match="p-value"):
        assert_follows(samples({0: 0.47, 1: 0.33, 2: 0.2}, 20_000), LAW)


def test_an_impossible_outcome_fails_however_rare() -> None:
    with pytest.raises(AssertionError, match="p-value"):
        assert_follows([*samples(LAW, 20_000), 3], LAW)


def test_a_law_with_many_rare_outcomes_does_not_alarm() -> None:
    law = {0: 0.9} | dict.fromkeys(range(1, 501), 0.1 / 500)
    assert_follows(samples(law, 2_000), law)


def test_a_one_hot_law_accepts_only_its_outcome() -> None:
    assert chi_square_p_value(Counter({4: 10}), {4: 1.0, 5: 0.0}) == 1.0
    assert chi_square_p_value(Counter({4: 10, 5: 1}), {4: 1.0, 5: 0.0}) == 0.0


def test_a_law_that_does_not_sum_to_one_is_refused() -> None:
    with pytest.raises(AssertionError, match="sum to 1"):
        assert_follows([0], {0: 0.9})


def test_a_rate_is_checked_from_both_sides() -> None:
    assert_rate(800, 1000, 0.8)
    for hits in (700, 900):
        with pytest.raises(AssertionError, match="p-value"):
            assert_rate(hits, 1000, 0.8)


def test_total_variation_is_half_the_l1_distance() -> None:
    assert total_variation({0: 1.0}, {1: 1.0}) == 1.0
    assert total_variation({0: 0.5, 1: 0.5}, {0: 0.25, 1: 0.75}) == pytest.approx(0.25)
    assert frequencies([1, 1, 2, 1]) == {1: 0.75, 2: 0.25}
