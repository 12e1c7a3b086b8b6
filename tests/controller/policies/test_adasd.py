import pytest

from controller.policies.base import PlanState
from controller.policies.registry import make_policy
from tests.controller.policies.rounds import STATE, round_outcome


def test_before_the_first_rejection_there_is_no_threshold_and_the_cap_is_20() -> None:
    policy = make_policy("adasd", {})
    policy.observe(round_outcome(3, 3, entropies_nats=(0.1, 5.0, 9.0)))
    plan = policy.plan(STATE)
    assert (plan.max_tokens, plan.stop_entropy_nats) == (20, None)
    assert policy.snapshot() == {}


def test_threshold_is_the_mean_entropy_of_first_rejected_tokens_only() -> None:
    policy = make_policy("adasd", {})
    # Accepted tokens (0.1, 0.2) and tokens behind the rejection (7.0) do not count.
    policy.observe(round_outcome(4, 2, entropies_nats=(0.1, 0.2, 1.0, 7.0)))
    assert policy.plan(STATE).stop_entropy_nats == pytest.approx(1.0)
    policy.observe(round_outcome(2, 0, entropies_nats=(2.5, 0.3)))
    assert policy.plan(STATE).stop_entropy_nats == pytest.approx(1.75)
    policy.observe(round_outcome(3, 3, entropies_nats=(9.0, 9.0, 9.0)))
    assert policy.plan(STATE).stop_entropy_nats == pytest.approx(1.75)
    assert policy.snapshot() == {"stop_entropy_nats": pytest.approx(1.75)}


def test_threshold_is_never_shared_between_requests() -> None:
    one, other = make_policy("adasd", {}), make_policy("adasd", {})
    one.observe(round_outcome(1, 0, entropies_nats=(3.0,)))
    assert other.plan(STATE).stop_entropy_nats is None


def test_length_leaves_room_for_the_targets_own_token() -> None:
    policy = make_policy("adasd", {})
    assert policy.plan(PlanState(10, remaining_tokens=4, max_draft_tokens=64)).max_tokens == 3
    assert policy.plan(PlanState(10, remaining_tokens=1, max_draft_tokens=64)).max_tokens == 0
    assert policy.plan(PlanState(10, remaining_tokens=9, max_draft_tokens=5)).max_tokens == 5


def test_cap_is_a_setting() -> None:
    assert make_policy("adasd", {"max_length": 7}).plan(STATE).max_tokens == 7
