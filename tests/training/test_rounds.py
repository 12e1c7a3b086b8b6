"""The arithmetic of acceptance, checked by hand."""

import pytest
import torch

from training.rounds import (
    Round,
    acceptance_by_position,
    coupled_acceptance,
    look_up,
    play,
    rejection_acceptance,
    tokens_a_round,
)


def test_rounds_commit_what_stood_and_the_targets_own_token() -> None:
    stands = [True, True, False, True, True, True, False, False, True]
    rounds = play((0, *range(1, 10)), 1, stands, chunk=2, lookup=False)
    # Tokens 0-1 stand, 2 is the bonus; 3-4 stand, 5 is the bonus; 6 does not stand; then two tokens are left.
    assert rounds == [Round(2, 2), Round(2, 2), Round(2, 0)]
    assert tokens_a_round(rounds) == pytest.approx(7 / 3)


def test_nothing_stands_means_one_token_a_round() -> None:
    rounds = play(tuple(range(12)), 2, [False] * 10, chunk=4, lookup=False)
    assert rounds == [Round(4, 0)] * 6
    assert tokens_a_round(rounds) == 1.0


def test_acceptance_at_a_position_counts_only_rounds_that_reached_it() -> None:
    rounds = [Round(3, 3), Round(3, 1), Round(3, 0), Round(3, 2), Round(1, 1)]
    assert acceptance_by_position(rounds, 3) == pytest.approx([4 / 5, 2 / 3, 1 / 2])


def test_lookup_continues_the_last_occurrence_of_the_longest_ending() -> None:
    token_ids = (1, 2, 3, 7, 7, 9, 2, 3, 8, 1, 2, 3)
    assert look_up(token_ids, 12, 2) == (7, 7)  # 1 2 3 was seen
    assert look_up((5, *token_ids[1:9], 4, 2, 3), 12, 2) == (8, 4)  # only 2 3 was seen, last before 8
    assert look_up((1, 2, 3, 4), 4, 2) == ()


def test_lookup_sees_nothing_behind_the_committed_length() -> None:
    assert look_up((1, 2, 1, 2, 1, 2), 4, 9) == (1, 2)


def test_lookup_goes_in_front_of_the_draft() -> None:
    token_ids = (1, 2, 3, 4, 9, 1, 2, 3, 4, 8)
    # The draft is always wrong. The first round is the draft's; behind "1 2" lookup says "3 4", which stands.
    rounds = play(token_ids, 5, [False] * 5, chunk=2, lookup=True)
    assert rounds == [Round(2, 0), Round(2, 0), Round(2, 2, from_lookup=True)]


def test_acceptance_given_the_targets_token_is_exact_for_both_rules() -> None:
    target = torch.tensor([[0.5, 0.3, 0.2]]).expand(3, 3)
    draft = torch.tensor([[0.2, 0.6, 0.2]]).expand(3, 3)
    drawn = torch.tensor([0, 1, 2])
    rejection = rejection_acceptance(target, draft, drawn)
    assert torch.allclose(rejection, torch.tensor([0.4, 1.0, 1.0]))
    # Averaged over the target's law: the sum of the minima of both.
    assert float((target[0] * rejection).sum()) == pytest.approx(0.2 + 0.3 + 0.2)
    coupled = coupled_acceptance(target, draft, drawn)
    by_hand = 1 / (0.5 * (max(1, 1) + max(0.3 / 0.5, 3) + max(0.2 / 0.5, 1)))
    assert float(coupled[0]) == pytest.approx(by_hand)


def test_a_race_of_equal_laws_always_agrees_and_disjoint_laws_never() -> None:
    law = torch.tensor([[0.7, 0.3, 0.0]])
    other = torch.tensor([[0.0, 0.0, 1.0]])
    token = torch.tensor([0])
    assert float(coupled_acceptance(law, law, token)) == pytest.approx(1.0)
    assert float(coupled_acceptance(law, other, token)) == 0.0
    assert float(rejection_acceptance(law, other, token)) == 0.0


def test_coupled_acceptance_is_what_races_show() -> None:
    """20,000 races; the rate differs from the law by more than 0.02 once in ten million runs."""
    target, draft = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.6, 0.2])
    arrivals = torch.empty(20_000, 3).exponential_(generator=torch.Generator().manual_seed(1))
    winners, drafted = (arrivals / target).argmin(-1), (arrivals / draft).argmin(-1)
    expected = (target * coupled_acceptance(target.expand(3, 3), draft.expand(3, 3), torch.arange(3))).sum()
    assert float((winners == drafted).float().mean()) == pytest.approx(float(expected), abs=0.02)
