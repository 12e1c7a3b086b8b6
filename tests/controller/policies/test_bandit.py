import random

import pytest

from controller.policies.bandit import BanditPolicy, BanditSettings, BanditTable, switch_penalty_ns
from controller.policies.costs import RoundCosts
from controller.policies.registry import PolicyFactory
from tests.controller.policies.rounds import STATE, round_outcome

MS = 1_000_000


def run(
    table: BanditTable, rounds: int, batch_size: int, ns_per_token: list[float], switch_ns: float = 0.0
) -> list[int]:
    """The lengths that a table chooses when a round of length k brings k + 1 tokens at the given price."""
    lengths = []
    for _ in range(rounds):
        length = table.choose(batch_size, switch_ns)
        lengths.append(length)
        table.observe(batch_size, length, length + 1, round(ns_per_token[length] * (length + 1)))
    return lengths


def test_going_back_to_speculation_costs_the_switch_spread_over_the_chunk() -> None:
    assert switch_penalty_ns(previous=0, length=4, switch_ns=20.0) == 5.0
    assert switch_penalty_ns(previous=0, length=0, switch_ns=20.0) == 0.0
    assert switch_penalty_ns(previous=3, length=4, switch_ns=20.0) == 0.0


def test_blocks_double_and_begin_with_exploring_bins() -> None:
    table = BanditTable(BanditSettings(max_length=3, bin_rounds=1))
    lengths = run(table, rounds=15, batch_size=1, ns_per_token=[9.0, 9.0, 1.0, 9.0])
    # Blocks of 1, 2, 4, 8 bins explore 1, 2, 2 and 3 of them, the length tried least (lowest first).
    assert lengths[0] == 0
    assert lengths[1:3] == [1, 2]
    assert lengths[3:7] == [3, 0, 2, 2]
    assert lengths[7:15] == [1, 3, 0, 2, 2, 2, 2, 2]


def test_a_length_is_kept_for_a_whole_bin_of_every_session() -> None:
    table = BanditTable(BanditSettings(max_length=3, bin_rounds=2))
    lengths = run(table, rounds=24, batch_size=4, ns_per_token=[4.0, 3.0, 2.0, 1.0])
    assert lengths == [0] * 8 + [1] * 8 + [2] * 8


def test_each_range_of_batch_sizes_learns_for_itself_and_zero_may_win() -> None:
    table = BanditTable(BanditSettings(max_length=3, bin_rounds=1))
    alone = run(table, rounds=300, batch_size=1, ns_per_token=[9.0, 5.0, 4.0, 3.0])
    crowded = run(table, rounds=300 * 32, batch_size=32, ns_per_token=[1.0, 2.0, 3.0, 4.0])
    assert alone[-1] == 3
    assert crowded[-1] == 0
    assert alone.count(3) > 200


def test_switch_cost_keeps_speculation_off_at_a_small_gain() -> None:
    for switch_ns, exploited in ((0.0, 1), (2.0, 0)):
        table = BanditTable(BanditSettings(max_length=1, bin_rounds=1))
        lengths = run(table, rounds=7, batch_size=1, ns_per_token=[10.0, 9.0], switch_ns=switch_ns)
        # The last two bins exploit, and follow a plain one.
        assert lengths == [0, 1, 0, 1, 0, exploited, exploited]


def test_measured_switch_cost_is_used() -> None:
    slow_to_resume = RoundCosts()
    for resumed, draft_ms in ((False, 8), (True, 48)):
        outcome = round_outcome(4, 4, draft_ns=draft_ms * MS, round_ns=(draft_ms + 1) * MS)
        slow_to_resume.observe(outcome, mean_length=4, resumed=resumed)
    assert slow_to_resume.switch_ns == pytest.approx(40 * MS)
    for costs, exploited in ((RoundCosts(), 1), (slow_to_resume, 0)):
        policy = BanditPolicy(BanditTable(BanditSettings(max_length=1, bin_rounds=1)), costs)
        lengths = []
        for _ in range(8):
            length = policy.plan(STATE).max_tokens
            lengths.append(length)
            # Per token 10 ms plain, 9 ms with one drafted.
            policy.observe(round_outcome(length, length, round_ns=18 * MS if length else 10 * MS))
        assert lengths == [0, 0, 1, 0, 1, 0, exploited, exploited]


def test_first_round_of_a_request_teaches_nothing() -> None:
    table = BanditTable(BanditSettings(max_length=1, bin_rounds=1))
    policy = BanditPolicy(table, RoundCosts())
    assert policy.plan(STATE).max_tokens == 0
    policy.observe(round_outcome(0, 0, round_ns=10_000 * MS))
    assert policy.plan(STATE).max_tokens == 0
    policy.observe(round_outcome(0, 0, round_ns=10 * MS))
    assert policy.plan(STATE).max_tokens == 1


def test_requests_of_a_pair_share_what_was_tried() -> None:
    factory = PolicyFactory()
    first = factory.make("bandit", {"max_length": 2, "bin_rounds": 1})
    for _ in range(2):
        first.plan(STATE)
        first.observe(round_outcome(0, 0))
    second = factory.make("bandit", {"max_length": 2, "bin_rounds": 1})
    assert second.plan(STATE).max_tokens == 1


def test_noisy_rounds_still_lead_to_the_best_length() -> None:
    # 30 ms of verification, 1 ms a drafted token, each accepted with 0.7: best is 7 of 0..8, 4 to 8 within 5 %.
    rng = random.Random(5)
    table = BanditTable(BanditSettings(max_length=8, bin_rounds=4))
    lengths = []
    for _ in range(4000):
        length = table.choose(1, 0.0)
        accepted = 0
        while accepted < length and rng.random() < 0.7:
            accepted += 1
        table.observe(1, length, accepted + 1, (30 + length) * MS)
        lengths.append(length)
    assert sum(length >= 4 for length in lengths[2000:]) > 0.8 * 2000
