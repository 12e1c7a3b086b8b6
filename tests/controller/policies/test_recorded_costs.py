import dataclasses

import pytest

from controller.policies.base import ChunkPlan, RoundOutcome
from controller.policies.recorded_costs import measured_costs
from controller.policies.trace import RoundRecord

MS = 1_000_000


def record(drafted_len: int, draft_ms: int, forward_ms: int, round_ms: int, request: str = "r") -> RoundRecord:
    times = (draft_ms * MS, 0, forward_ms * MS, round_ms * MS)
    outcome = RoundOutcome(drafted_len, 0, (1.0,) * drafted_len, *times, 1)
    return RoundRecord(request, 5, ChunkPlan(drafted_len), outcome)


PROMPT = record(9, 900, 900, 9000)


def test_costs_are_those_of_the_rounds_behind_the_first() -> None:
    # Forwards of 1, 3 and 5 positions took 20, 22 and 24 ms: 20 for the first and 1 for each more. 6 drafted tokens
    # took 12 ms; what remains of the rounds is 2 + 4 + 4 ms over 1 + 2 + 2 round trips.
    rounds = [PROMPT, record(0, 0, 20, 22), record(2, 4, 22, 30), record(4, 8, 24, 36)]
    costs = measured_costs(rounds)
    assert costs is not None
    assert dataclasses.astuple(costs) == pytest.approx((2.0, 20.0, 1.0, 2.0))


def test_a_forward_that_seems_cheaper_with_more_positions_is_flat() -> None:
    costs = measured_costs([PROMPT, record(1, 1, 30, 40), record(3, 1, 10, 40)])
    assert costs is not None
    assert (costs.verify_ms, costs.verify_token_ms) == (20.0, 0.0)


def test_a_line_that_would_begin_below_nothing_is_flat() -> None:
    costs = measured_costs([PROMPT, record(4, 1, 1, 40), record(6, 1, 31, 40)])
    assert costs is not None
    assert (costs.verify_ms, costs.verify_token_ms) == (16.0, 0.0)


@pytest.mark.parametrize("rounds", [[PROMPT], [PROMPT, record(0, 0, 20, 22)], [PROMPT, record(2, 0, 0, 0)]])
def test_costs_that_were_not_recorded_are_unknown(rounds: list[RoundRecord]) -> None:
    assert measured_costs(rounds) is None
