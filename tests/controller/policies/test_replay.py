import dataclasses
from functools import partial

import pytest

from controller.policies.base import ChunkPlan, ChunkPolicy, PlanState, RoundOutcome
from controller.policies.registry import make_policy, policy_names
from controller.policies.replay import (
    DraftStep,
    RequestTrace,
    TracedPosition,
    draft_chunk,
    linear_costs,
    replay,
    traces_of,
)
from controller.policies.trace import RoundRecord
from tests.controller.policies.answers import random_answer, scripted_answer

COSTS = linear_costs(draft_ms=1.0, verify_ms=20.0, verify_token_ms=0.5, network_ms=2.0)


def fixed(length: int) -> ChunkPolicy:
    return make_policy("fixed", {"length": length})


def record(base_len: int, drafted_len: int, accepted_len: int, request: str = "r") -> RoundRecord:
    entropies = tuple(float(base_len + index) for index in range(drafted_len))
    outcome = RoundOutcome(drafted_len, accepted_len, entropies, 0, 0, 0, 0, 1)
    return RoundRecord(request, base_len, ChunkPlan(drafted_len), outcome)


def test_rounds_lengths_and_times_are_those_of_the_chunks() -> None:
    # Chunks of 3: "+++" and a bonus token; "+-" and so on.
    result = replay([scripted_answer("++++" + "+-" + "-" + "+++")], lambda: fixed(3), COSTS)
    # Rounds: 3 accepted (4 tokens); 1 accepted (2); 0 accepted (1); then 3 left, of which 2 may be drafted: 2 (3).
    assert result.rounds == 4
    assert result.tokens == 10
    assert (result.drafted, result.accepted) == (11, 6)
    assert result.accepted_histogram == {3: 1, 1: 1, 0: 1, 2: 1}
    assert result.drafted_histogram == {3: 3, 2: 1}
    assert result.draft_ns == pytest.approx(11e6)
    assert result.verify_ns == pytest.approx((4 * 20 + 11 * 0.5) * 1e6)
    assert result.network_ns == pytest.approx(4 * 4e6)
    assert result.tokens_per_s == pytest.approx(10 / (11 + 85.5 + 16) * 1e3)
    assert result.acceptance == pytest.approx(6 / 11)
    assert result.tokens_per_round == pytest.approx(2.5)


def test_plain_decoding_takes_a_round_and_one_round_trip_a_token() -> None:
    result = replay([scripted_answer("+-+-+")], lambda: make_policy("off", {}), COSTS)
    assert (result.rounds, result.tokens, result.drafted) == (5, 5, 0)
    assert result.time_ns == pytest.approx(5 * 22e6)


@pytest.mark.parametrize("name", policy_names())
@pytest.mark.parametrize("guard", [0.0, 1.0])
def test_every_policy_commits_exactly_the_answers(name: str, guard: float) -> None:
    answers = [random_answer(0.6, 80, seed) for seed in range(3)]
    for batch_size in (1, 2):
        result = replay(answers, lambda: make_policy(name, {"guard": guard}), COSTS, batch_size=batch_size)
        assert result.tokens == 240


def test_a_long_recording_tells_all_shorter_chunks() -> None:
    # Recorded with chunks of 8, each begun at the bonus token of the last where that was accepted whole.
    answer = random_answer(0.8, 120, seed=3)
    records, offset = [], 0
    while offset < 119:
        chunk = [step for step, _ in zip(answer.chunk(offset), range(8), strict=False)]
        accepted_len = next((index for index, step in enumerate(chunk) if not step.matches), len(chunk))
        accepted_len = min(accepted_len, 119 - offset)
        entropies = tuple(step.entropies_nats for step in chunk)
        outcome = RoundOutcome(len(chunk), accepted_len, entropies, 0, 0, 0, 0, 1)
        records.append(RoundRecord("r", 20 + offset, ChunkPlan(8), outcome))
        offset += accepted_len + (accepted_len < len(chunk))
    recorded = traces_of(records)
    assert recorded[0].prompt_len == 20
    assert recorded[0].assumed == 0
    truth = [position.step.matches for position in answer.positions]
    assert [position.step.matches for position in recorded[0].positions[:110]] == truth[:110]
    for length in (1, 2, 5, 8):
        policy = partial(fixed, length)
        replayed, direct = replay(recorded, policy, COSTS), replay([answer], policy, COSTS)
        assert replayed.tokens_per_s == pytest.approx(direct.tokens_per_s, rel=0.03)


def test_uncovered_positions_are_assumed_and_counted() -> None:
    # A chunk of 2 accepted whole, its bonus token, a plain round, a rejection at once.
    trace = traces_of([record(10, 2, 2), record(13, 0, 0), record(14, 2, 0)])[0]
    assert [position.step.matches for position in trace.positions] == [True, True, True, False, False]
    assert trace.assumed == 2
    assert trace.positions[2].step.entropies_nats == 11.0
    assert [step.entropies_nats for step in trace.positions[4].rollout] == [15.0]
    # A fixed 1 drafts at all but each second position and the last: at the assumed third, and not at the fourth.
    result = replay([trace], lambda: fixed(1), COSTS)
    assert (result.assumed, result.beyond, result.drafted) == (2, 1, 2)


def test_a_looked_up_token_tells_nothing_of_the_draft() -> None:
    looked_up = dataclasses.replace(record(10, 3, 3), looked_up_len=2)
    assert replay(traces_of([looked_up]), lambda: fixed(3), COSTS).beyond == 2


def test_requests_of_a_recording_are_told_apart() -> None:
    traces = traces_of([record(10, 2, 0, "a"), record(30, 2, 1, "b"), record(11, 2, 1, "a")])
    assert [(trace.request, trace.prompt_len, len(trace.positions)) for trace in traces] == [("a", 10, 3), ("b", 30, 2)]


def test_behind_a_rejection_the_recorded_roll_out_is_drafted_then_its_last_token_repeats() -> None:
    rejected = TracedPosition(DraftStep(False, 2.0), (DraftStep(False, 3.0), DraftStep(False, 4.0)))
    trace = RequestTrace("r", 5, (TracedPosition(DraftStep(True, 1.0)), rejected, *scripted_answer("+++++").positions))
    chunk = draft_chunk(ChunkPlan(6), trace.chunk(0))
    assert [step.entropies_nats for step in chunk] == [1.0, 2.0, 3.0, 4.0, 4.0, 4.0]
    assert [step.recorded for step in chunk] == [True, True, True, True, False, False]


@pytest.mark.parametrize(
    ("plan", "length"),
    [
        (ChunkPlan(3), 3),
        (ChunkPlan(0), 0),
        (ChunkPlan(9, stop_entropy_nats=2.0), 9),  # not more than the threshold
        (ChunkPlan(9, stop_entropy_nats=1.9), 4),  # the token that crosses it stays
        (ChunkPlan(9, stop_prob=0.3), 9),
        (ChunkPlan(9, stop_prob=0.31), 4),
        (ChunkPlan(9, stop_survival=0.8), 3),  # 0.9, 0.81, 0.729
        (ChunkPlan(2, stop_survival=0.8), 2),
    ],
)
def test_stop_rules_keep_the_token_that_fires_them(plan: ChunkPlan, length: int) -> None:
    assert len(draft_chunk(plan, scripted_answer("+++------").chunk(0))) == length


def test_a_rule_without_its_number_does_not_fire() -> None:
    trace = RequestTrace("r", 5, (TracedPosition(DraftStep(True, 1.0)),) * 9)
    assert len(draft_chunk(ChunkPlan(6, stop_prob=0.9, stop_survival=0.9), trace.chunk(0))) == 6


def test_a_batch_waits_for_its_longest_draft_and_verifies_all_positions_at_once() -> None:
    lengths = iter([1, 4])
    waits: list[tuple[int, int, int]] = []

    class Spy(ChunkPolicy):
        def __init__(self) -> None:
            self.length = next(lengths)

        def plan(self, state: PlanState) -> ChunkPlan:
            return ChunkPlan(min(self.length, state.limit))

        def observe(self, outcome: RoundOutcome) -> None:
            waits.append((outcome.queue_ns, outcome.batch_size, outcome.round_ns))

    answers = [scripted_answer("+" * 2), scripted_answer("+" * 5)]
    result = replay(answers, Spy, COSTS, batch_size=2)
    round_ns = (4 + 20 + 6 * 0.5 + 4) * 1_000_000
    assert waits == [(3_000_000, 2, round_ns), (0, 2, round_ns)]
    assert (result.rounds, result.tokens, result.time_ns) == (2, 7, round_ns)


def test_a_request_that_ends_is_replaced() -> None:
    answers = [scripted_answer("-" * length) for length in (2, 6, 2, 2)]
    result = replay(answers, lambda: make_policy("off", {}), COSTS, batch_size=2)
    # Two at a time: 2 rounds with the first, 2 with the third, 2 with the fourth, all next to the second.
    assert result.time_ns == pytest.approx(6 * 22.5e6)


def test_a_policy_beyond_its_limit_is_a_fault() -> None:
    class Greedy(ChunkPolicy):
        def plan(self, state: PlanState) -> ChunkPlan:
            return ChunkPlan(state.limit + 1)

        def observe(self, outcome: RoundOutcome) -> None: ...

    with pytest.raises(ValueError, match="planned"):
        replay([scripted_answer("++++")], Greedy, COSTS)
