"""What holds for every policy, guarded or not, whatever it observes."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policies.base import PlanState, RoundOutcome
from controller.policies.guard import GuardSettings
from controller.policies.registry import PolicyFactory, policy_names


def any_state(rng: random.Random) -> PlanState:
    return PlanState(
        committed_len=rng.randint(1, 10**6),
        remaining_tokens=rng.choice([0, 1, 2, rng.randint(0, 100)]),
        max_draft_tokens=rng.choice([0, 1, rng.randint(0, 64)]),
        temperature=rng.choice([0.0, 1e-6, 1.0, rng.uniform(0.0, 5.0)]),
    )


def any_round(rng: random.Random, planned_len: int) -> RoundOutcome:
    """A round of at most the planned length, with signals there or not, and numbers at the edges of their ranges."""
    drafted_len = rng.choice([planned_len, rng.randint(0, planned_len)])

    def signal(low: float, high: float, absent: bool) -> tuple[float, ...]:
        return () if absent else tuple(rng.choice([low, high, rng.uniform(low, high)]) for _ in range(drafted_len))

    def absent() -> bool:
        return rng.random() < 0.3

    def time_ns() -> int:
        return rng.choice([0, 1, 10**11, rng.randint(0, 10**8)])

    return RoundOutcome(
        drafted_len,
        rng.choice([0, drafted_len, rng.randint(0, drafted_len)]),
        signal(0.0, 12.0, absent=False),
        draft_ns=time_ns(),
        queue_ns=time_ns(),
        forward_ns=time_ns(),
        round_ns=time_ns(),
        batch_size=rng.choice([0, 1, 2, rng.randint(1, 512)]),
        draft_probs=signal(0.0, 1.0, absent()),
        kl_nats=signal(-1e-3, 1e4, absent()),
        js_distance=signal(0.0, 1.0, absent()),
        target_entropies_nats=signal(0.0, 12.0, absent()),
    )


@pytest.mark.parametrize("name", policy_names())
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), guarded=st.booleans())
def test_plans_are_within_the_limit_and_thresholds_are_numbers(name: str, seed: int, guarded: bool) -> None:
    rng = random.Random(seed)
    factory = PolicyFactory(GuardSettings() if guarded else None)
    policies = [factory.make(name, {}) for _ in range(2)]
    for _ in range(30):
        policy = rng.choice(policies)
        state = any_state(rng)
        plan = policy.plan(state)
        assert isinstance(plan.max_tokens, int)
        assert 0 <= plan.max_tokens <= state.limit <= state.max_draft_tokens
        for threshold in (plan.stop_entropy_nats, plan.stop_prob, plan.stop_survival):
            assert threshold is None or (math.isfinite(threshold) and threshold >= 0.0)
        policy.observe(any_round(rng, plan.max_tokens))
        assert all(math.isfinite(value) for value in policy.snapshot().values())


@pytest.mark.parametrize("name", policy_names())
def test_the_same_rounds_give_the_same_plans(name: str) -> None:
    def run() -> list[tuple[object, dict[str, float]]]:
        rng = random.Random(3)
        policy = PolicyFactory(GuardSettings()).make(name, {})
        seen: list[tuple[object, dict[str, float]]] = []
        for index in range(60):
            plan = policy.plan(PlanState(10 + index, 500, 32))
            seen.append((plan, dict(policy.snapshot())))
            policy.observe(any_round(rng, plan.max_tokens))
        return seen

    assert run() == run()
