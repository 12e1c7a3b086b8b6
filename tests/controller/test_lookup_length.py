"""Promises about how far is looked up."""

import pytest

from controller.lookup_length import LookupLength


def test_it_doubles_while_everything_stands_up_to_the_limit() -> None:
    length, lengths = LookupLength(), []
    for _ in range(4):
        lengths.append(length.next(16))
        length.observe(lengths[-1], lengths[-1])
    assert lengths == [4, 8, 16, 16]


@pytest.mark.parametrize(("stood", "then"), [(1, 2), (2, 3), (3, 4)])
def test_it_falls_to_what_stood_and_one_more(stood: int, then: int) -> None:
    length = LookupLength()
    length.observe(4, stood)
    assert length.next(16) == then


def test_a_short_proposal_that_stands_does_not_shorten_the_next() -> None:
    length = LookupLength()
    length.observe(4, 4)
    length.observe(1, 1)
    assert length.next(16) == 8


def test_tokens_of_the_model_that_fell_behind_looked_up_ones_are_not_held_against_them() -> None:
    length = LookupLength()
    length.observe(3, 3)
    assert length.next(16) == 6


def test_after_matches_that_bring_nothing_the_model_has_ever_more_turns_up_to_a_bound() -> None:
    length, turns = LookupLength(), []
    for _ in range(6):
        length.observe(2, 0)
        turn = 0
        while not length.next(16):
            turn += 1
            length.observe(0, 3)
        turns.append(turn)
    assert turns == [1, 2, 4, 8, 8, 8]
    length.observe(2, 1)
    length.observe(2, 0)
    length.observe(0, 0)
    assert length.next(16) == 2


def test_no_more_than_the_limit_is_asked_for() -> None:
    assert LookupLength().next(3) == 3
    assert LookupLength().next(0) == 0
