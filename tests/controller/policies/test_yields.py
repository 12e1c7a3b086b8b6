import pytest

from controller.policies.yields import YieldModel


def test_without_rounds_acceptance_is_seven_tenths_and_no_chunk_stops_early() -> None:
    table = YieldModel(50).table(3)
    assert [entry.tokens for entry in table] == pytest.approx([1.0, 1.7, 2.19, 2.533])
    assert [entry.drafted for entry in table] == pytest.approx([0.0, 1.0, 2.0, 3.0])


def test_yields_approach_the_measured_acceptance() -> None:
    model = YieldModel(100_000)
    # A thousand chunks of 2: half are accepted whole, a quarter to the first token, a quarter not at all.
    for _ in range(250):
        for accepted_len in (2, 2, 1, 0):
            model.observe(planned_len=2, drafted_len=2, accepted_len=accepted_len)
    table = model.table(2)
    assert table[1].tokens == pytest.approx(1.75, rel=0.01)
    assert table[2].tokens == pytest.approx(2.25, rel=0.01)


def test_unused_lengths_go_on_at_the_last_measured_rate() -> None:
    model = YieldModel(100_000)
    for _ in range(500):
        model.observe(planned_len=2, drafted_len=2, accepted_len=2)
        model.observe(planned_len=2, drafted_len=2, accepted_len=1)
    tokens = [entry.tokens for entry in model.table(4)]
    # First position always, second half of the time; third and fourth are taken for halves, too.
    assert tokens[1] - tokens[0] == pytest.approx(1.0, rel=0.02)
    assert tokens[2] - tokens[1] == pytest.approx(0.5, rel=0.02)
    assert tokens[3] - tokens[2] == pytest.approx(0.25, rel=0.05)
    assert tokens[4] - tokens[3] == pytest.approx(0.125, rel=0.08)


def test_a_stop_rule_is_part_of_what_a_length_yields() -> None:
    model = YieldModel(100_000)
    # Everything is accepted, yet every second chunk stops behind its first token.
    for _ in range(500):
        model.observe(planned_len=4, drafted_len=4, accepted_len=4)
        model.observe(planned_len=4, drafted_len=1, accepted_len=1)
    table = model.table(4)
    assert table[4].tokens == pytest.approx(1 + (4 + 1) / 2, rel=0.02)
    assert table[4].drafted == pytest.approx((4 + 1) / 2, rel=0.02)


def test_a_request_begins_with_what_the_pair_has_seen() -> None:
    pair = YieldModel(500)
    for _ in range(500):
        pair.observe(planned_len=4, drafted_len=4, accepted_len=0)
    request = YieldModel(50, prior=pair)
    assert request.table(4)[4].tokens < 1.05
    for _ in range(50):
        request.observe(planned_len=4, drafted_len=4, accepted_len=4)
    assert request.table(4)[4].tokens > 4.0


def test_old_rounds_fade() -> None:
    model = YieldModel(20)
    for _ in range(200):
        model.observe(planned_len=4, drafted_len=4, accepted_len=4)
    for _ in range(100):
        model.observe(planned_len=4, drafted_len=4, accepted_len=0)
    assert model.table(1)[1].tokens < 1.35
