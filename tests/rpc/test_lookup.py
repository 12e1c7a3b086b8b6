"""Promises of the index: what it proposes is what a search of the whole text would find."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draft_service.lookup import LookupIndex

few_ids = st.lists(st.integers(0, 3), max_size=40)
"""Of so few ids that every suffix recurs."""


def found(tokens: list[int], max_tokens: int, lengths: range) -> tuple[int, ...]:
    """The same by search: the longest suffix that ends somewhere earlier, at its latest earlier end."""
    for length in lengths:
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] != tokens[len(tokens) - length :]:
                continue
            if end < len(tokens) - length:
                return tuple(tokens[end:][:max_tokens])
            longer = list(tokens)
            while len(longer) < len(tokens) + max_tokens:
                longer.append(longer[len(longer) - len(tokens) + end])
            return tuple(longer[len(tokens) :])
    return ()


@given(
    pieces=st.lists(few_ids, max_size=6),
    max_tokens=st.integers(0, 12),
    bounds=st.sampled_from([(2, 4), (1, 4), (3, 3)]),
)
@settings(max_examples=300, deadline=None)
def test_the_index_finds_what_a_search_finds_however_the_tokens_arrived(
    pieces: list[list[int]], max_tokens: int, bounds: tuple[int, int]
) -> None:
    index = LookupIndex(min_match=bounds[0], max_match=bounds[1])
    tokens: list[int] = []
    for piece in pieces:
        index.extend(piece)
        tokens += piece
        assert index.propose(max_tokens) == found(tokens, max_tokens, range(bounds[1], bounds[0] - 1, -1))
    assert index.token_ids == tokens


def test_a_copied_passage_is_proposed_as_it_was() -> None:
    passage = list(range(10, 40))
    index = LookupIndex([1, 2, *passage, 3, 4, *passage[:2]])
    assert index.propose(16) == tuple(passage[2:18])


def test_of_two_earlier_occurrences_the_longer_match_wins_over_the_later() -> None:
    assert LookupIndex([7, 8, 9, 1, 5, 8, 9, 2, 7, 8, 9]).propose(1) == (1,)
    assert LookupIndex([7, 8, 9, 1, 7, 8, 9, 2, 7, 8, 9]).propose(1) == (2,)


def test_a_repetition_goes_on_as_long_as_asked() -> None:
    assert LookupIndex([0, 5, 5, 5]).propose(7) == (5,) * 7
    assert LookupIndex([9, 1, 2, 1, 2]).propose(5) == (1, 2, 1, 2, 1)


def test_a_lone_recurring_token_is_no_match() -> None:
    assert LookupIndex([1, 2, 3, 1]).propose(4) == ()


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 2, 3, 4]])
def test_where_nothing_recurs_nothing_is_proposed(tokens: list[int]) -> None:
    assert LookupIndex(tokens).propose(8) == ()
