import pytest

from controller.policies.registry import make_policy
from tests.controller.policies.rounds import STATE, round_outcome


def test_adaedl_threshold_solves_its_bound_for_the_entropy() -> None:
    # 1 - sqrt(0.2 H) < 0.5 is H > 0.25 / 0.2.
    assert make_policy("adaedl", {}).plan(STATE).stop_entropy_nats == pytest.approx(1.25)
    assert make_policy("adaedl", {"gamma": 0.1, "initial_lambda": 0.2}).plan(STATE).stop_entropy_nats == pytest.approx(
        6.4
    )
    assert make_policy("adaedl", {"initial_lambda": 1.0}).plan(STATE).stop_entropy_nats == 0.0


def test_adaedl_steers_lambda_by_the_acceptance_rate() -> None:
    policy = make_policy("adaedl", {})
    # AR 0.5 * 0.9 + 0.5 * 0.5 = 0.7 < 0.9: lambda 0.9 * 0.5 + 0.1 * 0.51 = 0.501.
    policy.observe(round_outcome(4, 2))
    assert policy.snapshot() == pytest.approx(
        {"lambda": 0.501, "acceptance_rate": 0.7, "stop_entropy_nats": 0.499**2 / 0.2}
    )
    # AR 0.85, still under: 0.502.
    policy.observe(round_outcome(4, 4))
    assert policy.snapshot()["lambda"] == pytest.approx(0.502)
    # AR 0.925, over: back to 0.501.
    policy.observe(round_outcome(4, 4))
    assert policy.snapshot()["acceptance_rate"] == pytest.approx(0.925)
    assert policy.snapshot()["lambda"] == pytest.approx(0.501)


def test_adaedl_ignores_rounds_without_draft_tokens() -> None:
    policy = make_policy("adaedl", {})
    before = policy.snapshot()
    policy.observe(round_outcome(0, 0))
    assert policy.snapshot() == before


@pytest.mark.parametrize(("initial", "accepted_len"), [(1.0, 0), (0.0, 4)])
def test_adaedl_keeps_lambda_between_zero_and_one(initial: float, accepted_len: int) -> None:
    policy = make_policy("adaedl", {"initial_lambda": initial, "step": 1.0})
    for _ in range(30):
        policy.observe(round_outcome(4, accepted_len))
    assert policy.snapshot()["lambda"] == initial


def test_adaedl_and_svip_have_their_caps() -> None:
    assert make_policy("adaedl", {}).plan(STATE).max_tokens == 20
    assert make_policy("svip", {}).plan(STATE).max_tokens == 40


def test_svip_stops_above_six_tenths_of_a_nat() -> None:
    policy = make_policy("svip", {})
    policy.observe(round_outcome(4, 0))
    assert policy.plan(STATE).stop_entropy_nats == pytest.approx(0.6)
    assert make_policy("svip", {"threshold": 0.6}).plan(STATE).stop_entropy_nats == pytest.approx(2.4)
