from controller.policies.base import ChunkPolicy, PlanState
from controller.policies.registry import make_policy
from tests.controller.policies.rounds import STATE, round_outcome


def lengths_after(policy: ChunkPolicy, rounds: list[tuple[int, int]]) -> list[int]:
    lengths = []
    for drafted_len, accepted_len in rounds:
        policy.observe(round_outcome(drafted_len, accepted_len))
        lengths.append(policy.plan(STATE).max_tokens)
    return lengths


def test_off_never_drafts() -> None:
    policy = make_policy("off", {})
    assert policy.plan(STATE).max_tokens == 0
    assert lengths_after(policy, [(0, 0), (3, 3)]) == [0, 0]


def test_fixed_drafts_five_or_what_is_set_whatever_happens() -> None:
    assert lengths_after(make_policy("fixed", {}), [(5, 5), (5, 0)]) == [5, 5]
    assert lengths_after(make_policy("fixed", {"length": 3}), [(3, 0)]) == [3]
    assert make_policy("fixed", {"length": 0}).plan(STATE).max_tokens == 0
    assert make_policy("fixed", {}).plan(PlanState(1, 1, 8)).max_tokens == 0


def test_heuristic_adds_two_when_all_accepted_and_takes_one_otherwise() -> None:
    policy = make_policy("heuristic", {})
    assert policy.plan(STATE).max_tokens == 5
    assert lengths_after(policy, [(5, 5), (7, 6), (6, 0), (5, 5)]) == [7, 6, 5, 7]


def test_heuristic_stays_between_one_and_its_maximum() -> None:
    assert lengths_after(make_policy("heuristic", {"initial_length": 2}), [(2, 0), (1, 0)]) == [1, 1]
    assert lengths_after(make_policy("heuristic", {"initial_length": 19}), [(19, 19), (20, 20)]) == [20, 20]


def test_heuristic_ignores_rounds_without_draft_tokens() -> None:
    assert lengths_after(make_policy("heuristic", {}), [(0, 0)]) == [5]
