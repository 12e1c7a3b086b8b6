import pytest

from controller.policies.base import Signal
from controller.policies.hf_dynamic import best_threshold
from controller.policies.registry import make_policy
from tests.controller.policies.rounds import STATE, round_outcome


def test_it_starts_at_four_tenths_and_twenty_tokens() -> None:
    policy = make_policy("hf_dynamic", {})
    plan = policy.plan(STATE)
    assert (plan.max_tokens, plan.stop_prob, plan.stop_entropy_nats) == (20, 0.4, None)
    assert policy.wanted_signals == {Signal.DRAFT_PROB}


def test_threshold_has_the_least_false_alarms_plus_three_times_the_misses() -> None:
    # Sorted: 0.9 +, 0.8 +, 0.7 -, 0.6 +, 0.3 -, 0.2 -. Costs fpr + 3 (1 - tpr) at each:
    # 0.9: 0 + 2; 0.8: 0 + 1; 0.7: 1/3 + 1; 0.6: 1/3 + 0; 0.3: 2/3; 0.2: 1.
    judged = [(0.9, True), (0.2, False), (0.8, True), (0.7, False), (0.6, True), (0.3, False)]
    assert best_threshold(judged) == 0.6


def test_equal_probabilities_are_one_candidate() -> None:
    # At 0.5: all accepted and one of two rejected; there is no candidate between the equal ones.
    assert best_threshold([(0.5, True), (0.5, False), (0.5, True), (0.1, False)]) == 0.5


def test_of_equally_good_thresholds_the_highest_wins() -> None:
    # 3 accepted, 1 rejected at the top: 0.9 costs 1 + 3, then 3, 2, 1 more. Down to the last: 1.
    assert best_threshold([(0.9, False), (0.8, True), (0.7, True), (0.6, True)]) == 0.6
    # A miss of one in three costs as much as a false alarm of one in one: 0.8 and 0.6 both cost 1.
    judged = [(0.9, True), (0.8, True), (0.7, False), (0.6, True)]
    assert best_threshold(judged) == 0.8


def test_threshold_moves_after_more_than_five_samples_of_both_kinds() -> None:
    policy = make_policy("hf_dynamic", {})
    policy.observe(round_outcome(5, 5, draft_probs=(0.9, 0.8, 0.7, 0.6, 0.5)))
    assert policy.plan(STATE).stop_prob == 0.4  # five samples
    policy.observe(round_outcome(1, 1, draft_probs=(0.95,)))
    assert policy.plan(STATE).stop_prob == 0.4  # six, but all accepted
    policy.observe(round_outcome(3, 0, draft_probs=(0.3, 0.99, 0.99)))
    assert policy.plan(STATE).stop_prob == 0.5  # those behind the rejection do not count


def test_without_probabilities_the_threshold_stays() -> None:
    policy = make_policy("hf_dynamic", {})
    for _ in range(10):
        policy.observe(round_outcome(4, 2))
    assert policy.plan(STATE).stop_prob == 0.4


def test_oldest_samples_are_forgotten() -> None:
    policy = make_policy("hf_dynamic", {"history": 6})
    policy.observe(round_outcome(6, 5, draft_probs=(0.9, 0.8, 0.7, 0.6, 0.5, 0.1)))
    assert policy.plan(STATE).stop_prob == 0.5
    policy.observe(round_outcome(5, 5, draft_probs=(0.35,) * 5))
    # Left: the rejected 0.1 and five accepted 0.35.
    assert policy.plan(STATE).stop_prob == pytest.approx(0.35)
