import pytest

from controller.policies.base import RoundOutcome
from controller.policies.costs import RoundCosts

MS = 1_000_000


def timed(drafted_len: int, draft_ms: int, verify_ms: int, network_ms: int, batch_size: int = 1) -> RoundOutcome:
    """A round whose queue took a quarter of the verification."""
    queue_ns = verify_ms * MS // 4
    return RoundOutcome(
        drafted_len=drafted_len,
        accepted_len=0,
        entropies_nats=(0.0,) * drafted_len,
        draft_ns=draft_ms * MS,
        queue_ns=queue_ns,
        forward_ns=verify_ms * MS - queue_ns,
        round_ns=(draft_ms + verify_ms + network_ms) * MS,
        batch_size=batch_size,
    )


def test_round_is_draft_and_verification_and_network() -> None:
    costs = RoundCosts()
    assert (costs.knows_plain, costs.knows_speculation) == (False, False)
    costs.observe(timed(0, 0, 20, 1), mean_length=0.0, resumed=False)
    assert (costs.knows_plain, costs.knows_speculation) == (True, False)
    costs.observe(timed(4, 8, 28, 2), mean_length=4.0, resumed=False)
    assert (costs.knows_plain, costs.knows_speculation) == (True, True)
    assert costs.plain_ns(1) == pytest.approx(21 * MS)
    assert costs.round_ns(0, 1) == pytest.approx(21 * MS)
    assert costs.round_ns(4, 1) == pytest.approx(38 * MS)
    # Between: drafting 4 ms, verification of 3 positions half way from 20 to 28, two round trips.
    assert costs.round_ns(2, 1) == pytest.approx((4 + 24 + 2) * MS)


def test_unseen_kinds_of_round_are_guessed_from_the_seen_ones() -> None:
    plain_only, speculative_only = RoundCosts(), RoundCosts()
    plain_only.observe(timed(0, 0, 20, 1), mean_length=0.0, resumed=False)
    assert plain_only.round_ns(3, 1) == pytest.approx(22 * MS)
    speculative_only.observe(timed(3, 6, 20, 2), mean_length=3.0, resumed=False)
    assert speculative_only.plain_ns(1) == pytest.approx(21 * MS)


def test_verification_in_a_batch_is_predicted_for_all_sessions_alike() -> None:
    costs = RoundCosts()
    # 8 sessions of 5 positions take 60 ms; 8 of one take 20 ms.
    costs.observe(timed(4, 8, 60, 2, batch_size=8), mean_length=4.0, resumed=False)
    costs.observe(timed(0, 0, 20, 1, batch_size=8), mean_length=0.0, resumed=False)
    assert costs.plain_ns(8) == pytest.approx(21 * MS)
    assert costs.round_ns(4, 8) == pytest.approx(70 * MS)
    # 24 positions: half way between 8 and 40.
    assert costs.round_ns(2, 8) == pytest.approx((4 + 40 + 2) * MS)


def test_plain_rounds_next_to_speculating_sessions_do_not_count_as_plain_decoding() -> None:
    costs = RoundCosts()
    costs.observe(timed(4, 8, 60, 2, batch_size=8), mean_length=4.0, resumed=False)
    costs.observe(timed(0, 0, 58, 1, batch_size=8), mean_length=3.5, resumed=False)
    assert not costs.knows_plain
    costs.observe(timed(0, 0, 20, 1, batch_size=8), mean_length=0.0, resumed=False)
    costs.observe(timed(0, 0, 25, 1, batch_size=8), mean_length=0.5, resumed=False)
    assert costs.plain_ns(8) == pytest.approx(21 * MS)


def test_catching_up_is_booked_as_the_cost_of_switching() -> None:
    costs = RoundCosts()
    assert costs.switch_ns == 0.0
    costs.observe(timed(4, 8, 20, 2), mean_length=4.0, resumed=False)
    costs.observe(timed(4, 23, 20, 2), mean_length=4.0, resumed=True)
    assert costs.switch_ns == pytest.approx(15 * MS)
    assert costs.round_ns(4, 1) == pytest.approx(30 * MS)
