import pytest

from controller.policies.registry import make_policy
from tests.controller.policies.rounds import STATE, round_outcome


def test_dsde_sets_how_far_and_adasd_where_to_stop() -> None:
    policy = make_policy("adasd+dsde", {"decay": 1.0})
    policy.observe(round_outcome(30, 12, kl_nats=(0.1, 0.3) * 15, entropies_nats=(0.5,) * 12 + (1.5,) * 18))
    plan = policy.plan(STATE)
    assert plan.max_tokens == 13  # as in the tests of dsde, with a least length of 4: (1 - 0.4918) 16 + 4 = 12.13
    assert plan.stop_entropy_nats == pytest.approx(1.5)


def test_range_opens_again_when_the_text_gets_easier() -> None:
    lengths = []
    for reopen in (0.0, 1.0):
        policy = make_policy("adasd+dsde", {"reopen": reopen})
        policy.observe(round_outcome(30, 4, kl_nats=(0.1, 0.3) * 15))
        policy.plan(STATE)
        assert policy.snapshot()["sl_max"] == 7  # 4 (1 + 2/3)
        policy.observe(round_outcome(7, 7, kl_nats=(0.01,) * 7))
        policy.observe(round_outcome(13, 13, kl_nats=(0.01,) * 13))
        policy.observe(round_outcome(14, 13, kl_nats=(0.01,) * 14))
        policy.plan(STATE)
        lengths.append(policy.snapshot()["sl_max"])
    # Once doubled; then neither a shorter chunk nor one with a rejection counts.
    assert lengths == [7, 14]


def test_stop_rule_learns_but_is_silent_during_calibration() -> None:
    policy = make_policy("adasd+dsde", {})
    policy.observe(round_outcome(5, 1, kl_nats=(0.1,) * 5, entropies_nats=(0.5, 2.0, 0.1, 0.1, 0.1)))
    assert policy.plan(STATE).stop_entropy_nats is None
    assert policy.snapshot()["stop_entropy_nats"] == pytest.approx(2.0)


def test_without_divergences_it_is_adasd() -> None:
    policy = make_policy("adasd+dsde", {})
    policy.observe(round_outcome(5, 5, entropies_nats=(0.5,) * 5))
    policy.observe(round_outcome(10, 1, entropies_nats=(0.5, 2.0) * 5))
    plan = policy.plan(STATE)
    assert plan.max_tokens == 10
    assert plan.stop_entropy_nats == pytest.approx(2.0)
