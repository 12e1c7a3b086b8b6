import math

import pytest

from controller.policies.base import ChunkPolicy, PlanState, Signal
from controller.policies.batch_cap import BatchCap
from controller.policies.dsde import (
    CODE_VARIANT,
    DsdePolicy,
    DsdeSettings,
    LengthRange,
    calibrated_range,
    predicted_length,
    scale_factor,
    variance_ratio,
    weighted_variance,
)
from controller.policies.registry import make_policy
from controller.policies.settings import parse_settings
from tests.controller.policies.rounds import STATE, round_outcome


@pytest.mark.parametrize(("mean_kld", "expected"), [(0.0, 0.0), (0.02, 0.040811), (0.2, 0.491825), (0.347, 1.001707)])
def test_scale_factor_is_exp_of_twice_the_mean_divergence_minus_one(mean_kld: float, expected: float) -> None:
    assert scale_factor(mean_kld) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("mean_kld", "length"),
    # (1 - SF) * 18 + 2 at a variance ratio of 1: 19.27, 11.15, 2.03 and less than the least.
    [(0.0, 20), (0.02, 20), (0.2, 12), (math.log(2) / 2 - 1e-3, 3), (0.347, 2), (5.0, 2)],
)
def test_length_falls_from_longest_to_shortest_as_the_divergence_grows(mean_kld: float, length: int) -> None:
    assert predicted_length(scale_factor(mean_kld), min_length=2, max_length=20) == length


def test_whole_length_is_not_rounded_up_by_its_last_binary_digit() -> None:
    # (1 - 0.7) * 10 + 2 is 5.000000000000001 in floating point.
    assert predicted_length(0.7, min_length=2, max_length=12) == 5


def test_weighted_variance_weighs_the_newest_most() -> None:
    # Weights 1/2 and 1, mean 7/3: (1/2 * 16/9 + 1 * 4/9) / (3/2) = 8/9.
    assert weighted_variance([1.0, 3.0], decay=0.5) == pytest.approx(8 / 9)
    assert weighted_variance([1.0, 3.0], decay=1.0) == pytest.approx(1.0)


def test_variance_ratio_is_last_third_over_all() -> None:
    # Unweighted: last two 1, 3 have variance 1; all six have mean 2/3 and variance 10/6 - 4/9 = 11/9.
    assert variance_ratio([0.0, 0.0, 0.0, 0.0, 1.0, 3.0], decay=1.0) == pytest.approx(9 / 11)


def test_short_history_has_variance_ratio_zero() -> None:
    assert variance_ratio([], decay=0.85) == 0.0
    assert variance_ratio([3.0], decay=0.85) == 0.0
    # Two values: the last third is one value, which does not vary.
    assert variance_ratio([0.0, 3.0], decay=0.85) == 0.0


def test_flat_history_has_variance_ratio_twenty_and_flat_last_third_zero() -> None:
    assert variance_ratio([0.4] * 30, decay=0.85) == 20.0
    # Variance just under and just over 1e-6: values m - d and m + d have variance d^2.
    assert variance_ratio([0.4 - 9e-4, 0.4 + 9e-4] * 3, decay=1.0) == 20.0
    assert variance_ratio([0.4 - 1.1e-3, 0.4 + 1.1e-3] * 3, decay=1.0) == pytest.approx(1.0)
    assert variance_ratio([0.0, 2.0] * 10 + [1.0] * 10, decay=0.85) == 0.0


def test_range_is_longest_accepted_run_grown_by_mean_over_max_divergence() -> None:
    klds = [0.2, 0.4, 0.6]
    assert calibrated_range(6, klds, DsdeSettings()) == LengthRange(2, 10)  # 6 (1 + 2/3)
    assert calibrated_range(6, klds, DsdeSettings(growth=0.5)) == LengthRange(2, 8)  # 6 (1 + 1/3)
    assert calibrated_range(15, klds, DsdeSettings()) == LengthRange(2, 20)  # 25, kept at the maximum
    assert calibrated_range(0, klds, DsdeSettings()) == LengthRange(2, 2)  # 0, kept at the minimum
    assert calibrated_range(6, [0.0, 0.0], DsdeSettings()) == LengthRange(2, 6)  # no divergence, no growth
    assert calibrated_range(9, klds, DsdeSettings(min_length=1, min_fraction=0.1)) == LengthRange(2, 15)


def feed(policy: ChunkPolicy, drafted_len: int, accepted_len: int, kl: float, **fields: object) -> None:
    policy.observe(round_outcome(drafted_len, accepted_len, kl_nats=(kl,) * drafted_len, **fields))


def test_calibration_doubles_after_whole_chunks_and_holds_otherwise() -> None:
    policy = make_policy("dsde", {"window": 1000})
    lengths = [policy.plan(STATE).max_tokens]
    for drafted_len, accepted_len in [(5, 5), (10, 9), (10, 10), (20, 20), (20, 3), (0, 0)]:
        feed(policy, drafted_len, accepted_len, kl=0.1)
        lengths.append(policy.plan(STATE).max_tokens)
    assert lengths == [5, 10, 10, 20, 20, 20, 20]


def calibrated(parameters: dict[str, float], cap: BatchCap | None = None) -> DsdePolicy:
    """Calibrated by 30 divergences, half of them 0.1, half 0.3, and a longest accepted run of 12."""
    policy = DsdePolicy(parse_settings(DsdeSettings, parameters), cap or BatchCap())
    policy.observe(round_outcome(30, 12, kl_nats=(0.1, 0.3) * 15))
    return policy


def test_after_calibration_the_range_is_frozen() -> None:
    policy = calibrated({})
    policy.plan(STATE)
    before = policy.snapshot()
    assert before["sl_max"] == 20  # 12 (1 + 0.2 / 0.3), exactly the maximum
    for _ in range(5):
        feed(policy, 20, 20, kl=0.1)
        policy.plan(STATE)
    assert policy.snapshot()["sl_max"] == before["sl_max"]
    assert policy.snapshot()["sl_min"] == before["sl_min"] == 2


def test_length_follows_last_round_and_variance_ratio() -> None:
    policy = calibrated({"decay": 1.0})
    # The last third and the whole alternate alike: ratio 1. Mean 0.2: (1 - 0.4918) 18 + 2 = 11.15.
    assert policy.plan(STATE).max_tokens == 12
    assert policy.snapshot()["wvir"] == pytest.approx(1.0)
    # A flat last third gives the longest length even though the divergence is high.
    feed(policy, 10, 3, kl=2.0)
    assert policy.plan(STATE).max_tokens == 20
    # An entirely flat history gives the shortest, even though it is low.
    feed(policy, 30, 3, kl=0.05)
    assert policy.plan(STATE).max_tokens == 2


def test_code_variant_divides_by_temperature_and_has_its_own_constants() -> None:
    parameters = {**CODE_VARIANT, "decay": 1.0, "batch_cap": 0.0}
    policy = calibrated(dict(parameters))
    # Maximum 12 (1 + 0.5 * 2/3) = 16, minimum ceil(1.6) = 2. Mean 0.2 / 0.5 = 0.4: SF 1.2255 > 1.
    assert policy.plan(PlanState(10, 1000, 64, temperature=0.5)).max_tokens == 2
    assert (policy.snapshot()["sl_min"], policy.snapshot()["sl_max"]) == (2, 16)
    # At temperature 0 nothing is divided: (1 - 0.4918) 14 + 2 = 9.11.
    assert policy.plan(PlanState(10, 1000, 64, temperature=0.0)).max_tokens == 10


def test_paper_variant_does_not_divide_by_temperature() -> None:
    policy = calibrated({"decay": 1.0})
    assert policy.plan(PlanState(10, 1000, 64, temperature=0.1)).max_tokens == 12


def test_positions_behind_the_first_rejection_count() -> None:
    policy = DsdePolicy(DsdeSettings(), BatchCap())
    policy.observe(round_outcome(4, 1, kl_nats=(0.0, 0.4, 0.2, 0.2)))
    policy.observe(round_outcome(26, 1, kl_nats=(0.1,) * 26))
    policy.observe(round_outcome(4, 1, kl_nats=(0.0, 0.4, 0.2, 0.2)))
    policy.plan(STATE)
    assert policy.snapshot()["mean_kld"] == pytest.approx(0.2)


def test_rounds_without_divergences_change_no_history() -> None:
    policy = calibrated({"decay": 1.0})
    policy.observe(round_outcome(0, 0))
    policy.observe(round_outcome(8, 2))
    assert policy.plan(STATE).max_tokens == 12


def test_slightly_negative_or_huge_divergences_keep_the_length_in_its_range() -> None:
    policy = calibrated({})
    feed(policy, 10, 10, kl=-1e-4)
    assert 2 <= policy.plan(STATE).max_tokens <= 20
    policy.observe(round_outcome(10, 0, kl_nats=(18.0, 5e3) * 5))
    assert policy.plan(STATE).max_tokens == 2


def test_it_asks_for_the_divergence_only() -> None:
    assert make_policy("dsde", {}).wanted_signals == {Signal.KL}
    assert make_policy("adasd+dsde", {}).wanted_signals == {Signal.KL}
    assert make_policy("fixed", {}).wanted_signals == frozenset()


class Request:
    pass


def test_cap_is_the_mean_length_rounded_up() -> None:
    cap = BatchCap()
    requests = [Request() for _ in range(3)]
    for request, length in zip(requests, (2, 4, 15), strict=True):
        cap.report(request, length)
    assert cap.limit(batch_size=3) == 7
    best = min(range(1, 21), key=lambda length: sum((length - other) ** 2 for other in (2, 4, 15)))
    assert cap.limit(batch_size=3) == best
    cap.report(requests[2], 5)
    assert cap.limit(batch_size=2) == 4  # 11/3
    cap.leave(requests[0])
    cap.leave(requests[0])
    assert cap.limit(batch_size=2) == 5


def test_cap_forgets_requests_that_are_gone() -> None:
    cap = BatchCap()
    stays, goes = Request(), Request()
    cap.report(stays, 4)
    cap.report(goes, 20)
    del goes
    assert cap.limit(batch_size=2) == 4


def test_cap_forgets_requests_that_hang_while_others_go_on() -> None:
    cap = BatchCap()
    hangs, goes_on = Request(), Request()
    cap.report(hangs, 20)
    cap.report(goes_on, 4)
    assert cap.limit(batch_size=2) == 12
    for _ in range(100):
        cap.report(goes_on, 4)
    assert cap.limit(batch_size=2) == 4
    cap.report(hangs, 20)
    assert cap.limit(batch_size=2) == 12


def test_nobody_alone_in_its_batch_is_capped() -> None:
    cap = BatchCap()
    request, other = Request(), Request()
    assert cap.limit(batch_size=8) is None
    cap.report(request, 10)
    cap.report(other, 2)
    assert cap.limit(batch_size=1) is None
    assert cap.limit(batch_size=2) == 6


def test_calibrating_requests_are_neither_counted_nor_capped() -> None:
    cap = BatchCap()
    long, short = calibrated({"decay": 1.0}, cap), calibrated({"decay": 1.0}, cap)
    feed(long, 10, 10, kl=0.0, batch_size=3)
    feed(short, 10, 0, kl=9.0, batch_size=3)
    feed(short, 20, 0, kl=9.0, batch_size=3)
    newcomer = DsdePolicy(DsdeSettings(initial_length=16), cap)
    feed(newcomer, 5, 1, kl=0.1, batch_size=3)
    assert long.plan(STATE).max_tokens == 20
    assert short.plan(STATE).max_tokens == 2
    assert newcomer.plan(STATE).max_tokens == 16
    assert long.plan(STATE).max_tokens == 11  # mean of 20 and 2


def test_cap_can_be_switched_off() -> None:
    cap = BatchCap()
    other = Request()
    cap.report(other, 2)
    policy = calibrated({"decay": 1.0, "batch_cap": 0.0}, cap)
    feed(policy, 10, 10, kl=0.0, batch_size=2)
    assert policy.plan(STATE).max_tokens == 20
