"""What holds for every policy, guarded or not, whatever it observes."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policies.base import PlanState, RoundOutcome
from controller.policies.guard import GuardSettings
from controller.policies.registry import PolicyFactory, policy_names

TIMES = st.integers(0, 10**11)


@st.composite
def round_after(draw: st.DrawFn, planned_len: int) -> RoundOutcome:
    drafted_len = draw(st.integers(0, planned_len))
    accepted_len = draw(st.integers(0, drafted_len))

    def signal(low: float, high: float, optional: bool = True) -> tuple[float, ...]:
        if optional and draw(st.booleans()):
            return ()
        numbers = st.floats(low, high, allow_nan=False)
        return tuple(draw(st.lists(numbers, min_size=drafted_len, max_size=drafted_len)))

    times: dict[str, Any] = {name: draw(TIMES) for name in ("draft_ns", "queue_ns", "forward_ns", "round_ns")}
    return RoundOutcome(
        drafted_len,
        accepted_len,
        signal(0.0, 12.0, optional=False),
        batch_size=draw(st.integers(0, 512)),
        draft_probs=signal(0.0, 1.0),
        kl_nats=signal(-1e-3, 1e4),
        js_distance=signal(0.0, 1.0),
        target_entropies_nats=signal(0.0, 12.0),
        **times,
    )


@pytest.mark.parametrize("name", policy_names())
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_plans_are_within_the_limit_and_thresholds_are_numbers(name: str, data: st.DataObject) -> None:
    factory = PolicyFactory(GuardSettings() if data.draw(st.booleans()) else None)
    policies = [factory.make(name, {}) for _ in range(2)]
    for _ in range(data.draw(st.integers(1, 25))):
        policy = policies[data.draw(st.integers(0, 1))]
        state = PlanState(
            committed_len=data.draw(st.integers(1, 10**6)),
            remaining_tokens=data.draw(st.integers(0, 100)),
            max_draft_tokens=data.draw(st.integers(0, 64)),
            temperature=data.draw(st.floats(0.0, 5.0)),
        )
        plan = policy.plan(state)
        assert isinstance(plan.max_tokens, int)
        assert 0 <= plan.max_tokens <= state.limit <= state.max_draft_tokens
        for threshold in (plan.stop_entropy_nats, plan.stop_prob, plan.stop_survival):
            assert threshold is None or (math.isfinite(threshold) and threshold >= 0.0)
        policy.observe(data.draw(round_after(plan.max_tokens)))
        assert all(math.isfinite(value) for value in policy.snapshot().values())


@pytest.mark.parametrize("name", policy_names())
def test_the_same_rounds_give_the_same_plans(name: str) -> None:
    def run() -> list[tuple[object, dict[str, float]]]:
        policy = PolicyFactory(GuardSettings()).make(name, {})
        seen: list[tuple[object, dict[str, float]]] = []
        for index in range(60):
            plan = policy.plan(PlanState(10 + index, 500, 32))
            length = plan.max_tokens
            seen.append((plan, dict(policy.snapshot())))
            numbers = tuple((7 * index + 3 * position) % 10 / 10 for position in range(length))
            policy.observe(
                RoundOutcome(
                    length, index % (length + 1), numbers, 10**6 * length, 0, 10**7, 2 * 10**7, 1, numbers, numbers
                )
            )
        return seen

    assert run() == run()
