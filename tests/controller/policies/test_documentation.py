from pathlib import Path

import pytest

from controller.policies.registry import policy_names, policy_parameters

PAGE = (Path(__file__).parents[3] / "docs" / "policies.md").read_text()


@pytest.mark.parametrize("name", policy_names())
def test_page_describes_every_policy_and_its_parameters(name: str) -> None:
    assert f"\n| `{name}` | " in PAGE.split("## The goodput guard")[0]
    for parameter in policy_parameters(name):
        default, bounds = float(parameter.default), parameter.bounds
        row = f"| `{name}` | `{parameter.name}` | {default:g} | {bounds.low:g} to {bounds.high:g} | {bounds.meaning} |"
        assert row in PAGE
