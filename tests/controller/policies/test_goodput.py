import pytest

from controller.policies.base import PlanState, RoundOutcome
from controller.policies.costs import RoundCosts
from controller.policies.goodput import GoodputPolicy, GoodputSettings, expected_tokens
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
    policy = GoodputPolicy(GoodputSettings(), known_costs(verify_token_ms=0.5))
    policy.observe(round_outcome(4, 3, draft_probs=(0.5, 0.5, 0.5, 0.5)))
    assert policy.goodput(0) == pytest.approx(1 / (21 * MS))
    # 1 + 0.5 + 0.25 tokens in 4 + 21 + 2 ms.
    assert policy.goodput(2) == pytest.approx(1.75 / (27 * MS))


def test_without_probabilities_the_length_is_the_best_by_measured_acceptance() -> None:
    policy = GoodputPolicy(GoodputSettings(), known_costs(verify_token_ms=0.5))
    policy.observe(round_outcome(5, 3))  # three stood, one fell, one was not judged: 0.75
    assert policy.snapshot()["confidence"] == pytest.approx(0.75)
    plan = policy.plan(STATE)
    # expected_tokens(0.75, s) / (22 + 2.5 s) is 0.0947 at 3, 0.0953 at 4 and 0.0934 at 5.
    assert (plan.max_tokens, plan.stop_survival) == (4, None)


def test_with_probabilities_drafting_stops_where_one_token_more_lowers_the_goodput() -> None:
    policy = GoodputPolicy(GoodputSettings(), known_costs(verify_token_ms=0.5))
    policy.observe(round_outcome(4, 3, draft_probs=(0.75, 0.75, 0.75, 0.75)))
    plan = policy.plan(STATE)
    assert plan.max_tokens == 20
    # goodput(4) * 2.5 ms / 0.75
    assert plan.stop_survival == pytest.approx(expected_tokens(0.75, 4) / 32 * 2.5 / 0.75)


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
        # 1.5 tokens in 22.5 ms against 1 in 20 ms; in 102.5 ms against 60 ms.
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
