"""AdaSD's acceptance, against numbers computed by hand and against a kernel density of its own."""

import math
import statistics

import pytest

from speculative.sampling.acceptance import rejection_accepted_len
from speculative.sampling.adasd import Adasd, DistanceGroup, Evidence
from speculative.sampling.types import AdasdLabels, AdasdOptions, AdasdVariant
from tests.support.statistics import assert_follows

MIDPOINT = AdasdOptions(AdasdVariant.MIDPOINT)
BAYES = AdasdOptions(AdasdVariant.BAYES)
SELF = AdasdOptions(AdasdVariant.MIDPOINT, AdasdLabels.SELF)


def good(distance: float) -> Evidence:
    """A token that the exact test lets stand, whatever the number."""
    return Evidence(draft_prob=0.5, target_prob=0.5, distance=distance, possible=True)


def bad(distance: float) -> Evidence:
    """A token that the exact test rejects, whatever the number, although the target's law does not exclude it."""
    return Evidence(draft_prob=0.5, target_prob=0.0, distance=distance, possible=True)


def excluded(distance: float) -> Evidence:
    return Evidence(draft_prob=0.5, target_prob=0.0, distance=distance, possible=False)


def judge(rule: Adasd, *tokens: Evidence, base_len: int = 10, seed: int = 3) -> int:
    return rule.accepted_len(tokens, seed=seed, base_len=base_len)


def taught(options: AdasdOptions, stood: list[float], fell: list[float], *, raw: bool = False) -> Adasd:
    """A rule that has learnt these distances, each in a round of its own."""
    rule = Adasd(options, raw=raw)
    for base_len, distance in enumerate(stood):
        judge(rule, good(distance), base_len=base_len)
    for base_len, distance in enumerate(fell):
        judge(rule, bad(distance), base_len=100 + base_len)
    return rule


def test_the_papers_example_puts_the_midpoint_of_015_and_049_at_032() -> None:
    rule = taught(MIDPOINT, [0.15], [0.49])
    assert rule.threshold == pytest.approx(0.32)
    assert judge(rule, bad(0.3199)) == 1


def test_the_midpoint_is_between_the_means_of_all_distances_so_far() -> None:
    rule = taught(MIDPOINT, [0.1, 0.2], [])
    assert rule.threshold is None
    assert judge(rule, bad(0.5)) == 0
    assert rule.threshold == pytest.approx((0.15 + 0.5) / 2)
    assert judge(rule, bad(0.7)) == 0
    assert rule.threshold == pytest.approx((0.15 + 0.6) / 2)


def test_midpoint_accepts_below_the_threshold_and_not_at_it_whatever_the_exact_test_says() -> None:
    assert judge(taught(MIDPOINT, [0.25], [0.75]), bad(0.4999)) == 1
    assert judge(taught(MIDPOINT, [0.25], [0.75]), good(0.5)) == 0
    assert judge(taught(MIDPOINT, [0.25], [0.75]), bad(0.1), good(0.2), good(0.6), good(0.1)) == 2


@pytest.mark.parametrize("options", [MIDPOINT, BAYES])
def test_until_both_groups_are_usable_the_exact_test_decides(options: AdasdOptions) -> None:
    tokens = [Evidence(0.9, 0.3, 0.4, possible=True) for _ in range(6)]
    for seed in range(50):
        expected = rejection_accepted_len([0.9] * 6, [0.3] * 6, seed=seed, base_len=7)
        assert Adasd(options, raw=False).accepted_len(tokens, seed=seed, base_len=7) == expected


def test_a_group_with_one_distinct_distance_has_no_density() -> None:
    assert taught(BAYES, [0.1, 0.1, 0.1], [0.5, 0.6]).probability(0.3) is None
    assert taught(BAYES, [0.0, 0.1, 1.0], [0.5, 0.6]).probability(0.3) is None  # 0 and 1 enter no density
    assert taught(BAYES, [0.1, 0.2], [0.5, 0.6]).probability(0.3) is not None


def density(values: list[float], at: float) -> float:
    """The textbook formula: a mean of normal densities of Silverman's width."""
    width = statistics.stdev(values) * (4.0 / (3.0 * len(values))) ** 0.2
    return statistics.fmean(statistics.NormalDist(value, width).pdf(at) for value in values)


def test_the_probability_is_bayes_rule_on_two_densities() -> None:
    stood, fell = [0.1, 0.15, 0.3], [0.4, 0.7]
    rule = taught(BAYES, stood, fell)
    for distance in (0.05, 0.3, 0.45, 0.9):
        accepts, rejects = density(stood, distance) * 3 / 5, density(fell, distance) * 2 / 5
        assert rule.probability(distance) == pytest.approx(accepts / (accepts + rejects))


def test_the_probability_is_defined_where_both_densities_underflow() -> None:
    rule = taught(BAYES, [0.1, 0.1001], [0.2, 0.2001])
    assert rule.probability(0.9) == pytest.approx(0.0, abs=1e-300)
    assert rule.probability(1e-9) == pytest.approx(1.0)


def test_bayes_accepts_with_that_probability() -> None:
    """2,000 seeds; false alarms once in a million."""
    probability = taught(BAYES, [0.2, 0.3, 0.35], [0.4, 0.5, 0.3]).probability(0.35)
    assert probability is not None
    assert 0.2 < probability < 0.8
    verdicts = (judge(taught(BAYES, [0.2, 0.3, 0.35], [0.4, 0.5, 0.3]), bad(0.35), seed=seed) for seed in range(2000))
    assert_follows(verdicts, {1: probability, 0: 1.0 - probability})


@pytest.mark.parametrize("options", [MIDPOINT, BAYES])
def test_a_token_that_the_target_excludes_always_falls(options: AdasdOptions) -> None:
    rule = taught(options, [0.8, 0.9], [0.95, 0.99])
    assert [judge(rule, excluded(distance)) for distance in (0.0, 1e-9, 0.1, 0.5)] == [0] * 4
    assert judge(Adasd(options, raw=False), excluded(0.1)) == 0


def test_distance_zero_stands_and_distance_one_falls() -> None:
    rule = taught(MIDPOINT, [0.1], [0.3])
    assert judge(rule, bad(0.0)) == 1
    assert judge(rule, good(1.0)) == 0
    assert judge(Adasd(BAYES, raw=False), bad(0.0)) == 1


def test_raw_laws_have_a_tolerance() -> None:
    for options in (MIDPOINT, BAYES):
        assert judge(Adasd(options, raw=True), bad(0.001)) == 1
        assert judge(Adasd(options, raw=False), bad(0.001)) == 0
        assert judge(Adasd(options, raw=True), good(0.999)) == 0
        assert judge(Adasd(options, raw=False), good(0.999)) == 1


def test_labels_are_those_of_the_exact_test_unless_asked_otherwise() -> None:
    for options, threshold in ((MIDPOINT, (0.2 + (0.6 + 0.1) / 2) / 2), (SELF, ((0.2 + 0.1) / 2 + 0.6) / 2)):
        rule = taught(options, [0.2], [0.6])
        assert judge(rule, bad(0.1)) == 1
        assert rule.threshold == pytest.approx(threshold)


def test_nothing_is_learnt_from_tokens_behind_the_first_that_falls() -> None:
    rule = taught(MIDPOINT, [0.2], [0.6])
    assert judge(rule, bad(0.7), good(0.3)) == 0
    assert rule.threshold == pytest.approx((0.2 + 0.65) / 2)


def test_what_a_chunk_teaches_counts_from_the_next_chunk_on() -> None:
    rule = taught(MIDPOINT, [0.2], [0.6])
    assert judge(rule, bad(0.39), good(0.41)) == 1  # the first alone would move the threshold to 0.3475


def test_a_density_rests_on_the_newest_distances() -> None:
    group = DistanceGroup()
    for index in range(400):
        group.add(index / 400, is_inner=True)
    assert len(group.inner) == 256
    assert group.count == 400
    assert math.exp(group.log_density(0.7)) == pytest.approx(density([i / 400 for i in range(144, 400)], 0.7))
