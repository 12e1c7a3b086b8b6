import pytest

from controller.policies.base import PlanState, RoundOutcome
from controller.policies.costs import RoundCosts
from controller.policies.goodput import GoodputPolicy, GoodputSettings, calibration_exponent, expected_tokens
from tests.controller.policies.rounds import STATE, round_outcome

MS = 1_000_000


def known_costs(verify_token_ms: float, draft_ms: float = 2.0, network_ms: float = 1.0) -> RoundCosts:
    """Verification of 20 ms and so much more for each further position, at batch 1, seen at every length to 20."""
    costs = RoundCosts()
    for length in range(21):
        verify_ns = round((20 + verify_token_ms * length) * MS)
        draft_ns = round(draft_ms * length * MS)
        trips = 2 if length else 1
        outcome = RoundOutcome(
            drafted_len=length,
            accepted_len=0,
            entropies_nats=(0.0,) * length,
            draft_ns=draft_ns,
            queue_ns=0,
            forward_ns=verify_ns,
            round_ns=verify_ns + draft_ns + round(trips * network_ms * MS),
            batch_size=1,
        )
        costs.observe(outcome, mean_length=length, resumed=False)
    return costs


def test_expected_tokens_is_the_geometric_sum() -> None:
    assert expected_tokens(0.5, 0) == 1.0
    assert expected_tokens(0.5, 3) == pytest.approx(1.875)
    assert expected_tokens(0.8, 4) == pytest.approx((1 - 0.8**5) / (1 - 0.8))


def test_goodput_is_tokens_over_draft_verification_and_round_trips() -> None:
    policy = GoodputPolicy(GoodputSettings(calibrate=False), known_costs(verify_token_ms=0.5))
    policy.observe(round_outcome(4, 3, draft_probs=(0.5, 0.5, 0.5, 0.5)))
    assert policy.goodput(0) == pytest.approx(1 / (21 * MS))
    # 1 + 0.5 + 0.25 tokens in 4 + 21 + 2 ms.
    assert policy.goodput(2) == pytest.approx(1.75 / (27 * MS))


def test_without_probabilities_the_length_is_the_best_by_measured_acceptance() -> None:
    policy = GoodputPolicy(GoodputSettings(), known_costs(verify_token_ms=0.5))
    policy.observe(round_outcome(5, 3))
    # Three stood, one fell, one was not judged; ten more at 0.7 for want of any.
    assert policy.snapshot()["confidence"] == pytest.approx((3 + 7) / 14)
    plan = policy.plan(STATE)
    # expected_tokens(0.714, s) / (22 + 2.5 s) is 0.0877 at 3, 0.0890 at 4 and 0.0879 at 5.
    assert (plan.max_tokens, plan.stop_survival) == (4, None)


def test_with_probabilities_drafting_stops_where_one_token_more_lowers_the_goodput() -> None:
    policy = GoodputPolicy(GoodputSettings(calibrate=False), known_costs(verify_token_ms=0.5))
    policy.observe(round_outcome(4, 3, draft_probs=(0.75, 0.75, 0.75, 0.75)))
    plan = policy.plan(STATE)
    assert plan.max_tokens == 20
    # goodput(4) * 2.5 ms / 0.75
    assert plan.stop_survival == pytest.approx(expected_tokens(0.75, 4) / 32 * 2.5 / 0.75)


def test_exponent_makes_probabilities_say_what_stood() -> None:
    assert calibration_exponent([0.5] * 4, 0.25) == pytest.approx(2.0, rel=0.01)
    assert calibration_exponent([0.5] * 4, 0.5) == pytest.approx(1.0, rel=0.01)
    assert calibration_exponent([0.25, 1.0], 0.75) == pytest.approx(0.5, rel=0.01)  # (0.5 + 1) / 2
    assert calibration_exponent([0.5], 0.0) == pytest.approx(16.0, rel=0.01)
    assert calibration_exponent([0.5], 1.0) == pytest.approx(1 / 16, rel=0.01)


def test_a_draft_that_is_better_than_it_says_is_calibrated() -> None:
    policy = GoodputPolicy(GoodputSettings(window=10), known_costs(verify_token_ms=0.5))
    policy.observe(round_outcome(10, 8, draft_probs=(0.25,) * 9 + (1.0,)))
    # Nine were judged, all at 0.25, eight stood; with ten more at 0.25: 10.5 of 19. 0.25^g = 0.5526.
    assert policy.snapshot()["confidence"] == pytest.approx(10.5 / 19)
    exponent = policy.snapshot()["exponent"]
    assert 0.25**exponent == pytest.approx(10.5 / 19, rel=0.01)
    # The best length is 2: threshold goodput(2) * 2.5 ms / confidence, for the product of the powers.
    survival = expected_tokens(10.5 / 19, 2) / 27 * 2.5 / (10.5 / 19)
    assert max(range(21), key=policy.goodput) == 2
    assert policy.plan(STATE).stop_survival == pytest.approx(survival ** (1 / exponent))


def test_after_enough_plain_rounds_one_token_is_tried() -> None:
    policy = GoodputPolicy(GoodputSettings(retry_rounds=5), known_costs(verify_token_ms=20.0))
    policy.observe(round_outcome(4, 0))
    lengths = []
    for _ in range(8):
        length = policy.plan(STATE).max_tokens
        lengths.append(length)
        policy.observe(round_outcome(length, 0))
    assert lengths == [0, 0, 0, 0, 0, 1, 0, 0]


def test_no_speculation_when_one_token_does_not_pay() -> None:
    policy = GoodputPolicy(GoodputSettings(), known_costs(verify_token_ms=20.0))
    policy.observe(round_outcome(4, 3))
    assert policy.goodput(1) <= policy.goodput(0)
    assert policy.plan(STATE).max_tokens == 0


def test_round_trips_decide_like_any_other_cost() -> None:
    near, far = known_costs(0.5, network_ms=0.0), known_costs(0.5, network_ms=40.0)
    for costs, pays in ((near, True), (far, False)):
        policy = GoodputPolicy(GoodputSettings(max_length=1), costs)
        policy.observe(round_outcome(2, 1))
        # 1.67 tokens in 22.5 ms against 1 in 20 ms; in 102.5 ms against 60 ms.
        assert (policy.plan(STATE).max_tokens > 0) is pays


def test_steps_longer_than_the_time_per_token_allows_are_not_feasible() -> None:
    policy = GoodputPolicy(GoodputSettings(slo_ms_per_token=27.1), known_costs(verify_token_ms=0.5))
    policy.observe(round_outcome(5, 3))
    assert policy.goodput(3) == 0.0
    assert policy.plan(STATE).max_tokens == 2  # 22 + 2 * 2.5 ms
    strict = GoodputPolicy(GoodputSettings(slo_ms_per_token=22.0), known_costs(verify_token_ms=0.5))
    strict.observe(round_outcome(5, 3))
    assert strict.plan(STATE).max_tokens == 0


def test_it_starts_at_its_first_length_while_costs_are_not_known() -> None:
    policy = GoodputPolicy(GoodputSettings(initial_length=3), RoundCosts())
    assert policy.plan(STATE).max_tokens == 3
    assert policy.plan(PlanState(10, 2, 64)).max_tokens == 1
