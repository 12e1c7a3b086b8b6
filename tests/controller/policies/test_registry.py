import math

import pytest

from controller.policies.base import PlanState
from controller.policies.registry import make_policy, policy_names, policy_parameters
from speculative.errors import InvalidRequestError

STATE = PlanState(committed_len=10, remaining_tokens=100, max_draft_tokens=64)


def test_every_named_policy_can_be_made_with_its_defaults() -> None:
    for name in policy_names():
        assert 0 <= make_policy(name, {}).plan(STATE).max_tokens <= 64


def test_every_parameter_is_accepted_at_its_default_and_at_its_bounds() -> None:
    for name in policy_names():
        for parameter in policy_parameters(name):
            for value in (parameter.default, parameter.bounds.low, parameter.bounds.high):
                make_policy(name, {parameter.name: float(value)})


def test_unknown_policy_is_refused_by_name_and_lists_the_known_ones() -> None:
    with pytest.raises(InvalidRequestError, match="adasd") as refusal:
        make_policy("fastest", {})
    assert refusal.value.field == "speculation.policy"


def test_unknown_parameter_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match="length") as refusal:
        make_policy("fixed", {"lenght": 3})
    assert refusal.value.field == "speculation.policy_parameters[lenght]"


@pytest.mark.parametrize("value", [-1, 1025, 2.5, math.nan, math.inf])
def test_bad_parameter_value_is_refused_by_name(value: float) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        make_policy("fixed", {"length": value})
    assert refusal.value.field == "speculation.policy_parameters[length]"
