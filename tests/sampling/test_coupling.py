"""The race over rows is exact, keyed by position alone, and couples two models as the theory says."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from speculative.sampling import counter, coupling
from speculative.sampling.counter import Stream, row_key
from tests.support.statistics import assert_follows, assert_rate, total_variation

SEED = 11


def keys(number: int, seed: int = SEED) -> list[int]:
    return [row_key(seed, Stream.RACE, position) for position in range(number)]


def random_scores(rows: int, vocab_size: int, *, spread: float, seed: int = SEED) -> Tensor:
    scores = torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * spread
    return scores - scores.amax(-1, keepdim=True)


def winners(scores: Tensor, row_keys: list[int]) -> list[int]:
    """As the engine finds them: doubtful rows once more."""
    result = coupling.race(scores, row_keys)
    ids: list[int] = result.token_ids.tolist()
    for row, certain in enumerate(result.certified.tolist()):
        if not certain:
            ids[row] = int(coupling.race_exact(scores[row : row + 1], row_keys[row : row + 1]))
    return ids


def log_of(law: dict[int, float], rows: int) -> Tensor:
    return torch.tensor([list(law.values())]).log().expand(rows, -1)


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 4.0, 100.0])
@pytest.mark.parametrize("vocab_size", [641, 1000, 5003, 49_152])
def test_two_stages_find_the_exact_winner(vocab_size: int, spread: float) -> None:
    scores = random_scores(16, vocab_size, spread=spread)
    result = coupling.race(scores, keys(16))
    exact = coupling.race_exact(scores, keys(16))
    assert result.certified.sum() >= 15
    assert torch.equal(result.token_ids[result.certified], exact[result.certified])


@pytest.mark.parametrize("vocab_size", [1, 2, 40, 3000])
def test_the_winner_is_that_of_the_pure_race(vocab_size: int) -> None:
    scores = random_scores(8, vocab_size, spread=2.0)
    expected = [
        counter.race(key, enumerate(row.double().exp().tolist())) for key, row in zip(keys(8), scores, strict=True)
    ]
    assert winners(scores, keys(8)) == expected


def test_a_doubtful_winner_is_never_called_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one block looked at, about one row in ten of a flat law is in doubt; the others are right."""
    monkeypatch.setattr(coupling, "_FINALISTS", 1)
    scores = torch.zeros(400, 3000)
    result = coupling.race(scores, keys(400))
    exact = coupling.race_exact(scores, keys(400))
    assert 0 < (~result.certified).sum() < 100
    assert torch.equal(result.token_ids[result.certified], exact[result.certified])


def test_doubt_is_rare() -> None:
    """In 3,000 rows of flat and peaked laws, at most 3 are in doubt (expected: less than 1)."""
    doubtful = 0
    for seed, spread in enumerate((0.0, 1.0, 3.0)):
        scores = random_scores(1000, 2048, spread=spread, seed=seed)
        doubtful += int((~coupling.race(scores, keys(1000, seed)).certified).sum())
    assert doubtful <= 3


def test_the_winner_of_a_row_does_not_depend_on_its_batch() -> None:
    scores = random_scores(9, 4000, spread=2.0)
    alone = [winners(scores[row : row + 1], keys(9)[row : row + 1])[0] for row in range(9)]
    assert winners(scores, keys(9)) == alone


def test_winners_follow_the_law() -> None:
    """8,000 positions of a law over 1,500 ids, seven of them heavy; false-alarm rate 1e-6."""
    law = torch.full((1500,), 0.3 / 1493)
    law[[0, 1, 127, 128, 700, 1498, 1499]] = 0.1
    picked = [
        token_id
        for first in range(0, 8000, 1000)
        for token_id in winners(
            law.log().expand(1000, -1), [row_key(SEED, Stream.RACE, first + row) for row in range(1000)]
        )
    ]
    assert_follows(picked, dict(enumerate((law.double() / law.double().sum()).tolist())))


def test_winners_of_different_seeds_follow_the_law_at_one_position() -> None:
    """8,000 seeds; false-alarm rate 1e-6."""
    law = {0: 0.05, 1: 0.5, 2: 0.25, 3: 0.2}
    picked = winners(log_of(law, 8000), [row_key(seed, Stream.RACE, 77) for seed in range(8000)])
    assert_follows(picked, law)


def test_tokens_of_weight_zero_never_win() -> None:
    scores = random_scores(200, 2000, spread=1.0)
    scores[:, ::2] = -torch.inf
    assert all(token_id % 2 == 1 for token_id in winners(scores, keys(200)))


@settings(deadline=None)
@given(st.floats(min_value=0.0, max_value=3e38), st.integers(0, 2**64 - 1))
def test_scores_of_any_size_are_safe(gap: float, seed: int) -> None:
    scores = torch.full((1, 700), -gap)
    scores[0, 3] = 0.0
    row_keys = [row_key(seed, Stream.RACE, 0)]
    winner = winners(scores, row_keys)[0]
    assert winner == coupling.race_exact(scores, row_keys).item()
    assert winner == 3 or gap < 40.0  # E is between 2^-32 and 23


def test_equal_values_go_to_the_lowest_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coupling, "row_words", lambda keys, ids: torch.ones(len(keys), ids.shape[-1]).int())
    token_ids = torch.tensor([[9, 4, 7, 2]])
    assert coupling.race_exact(torch.tensor([[0.0, 0.0, 0.0, -1.0]]), [0], token_ids).tolist() == [4]


TARGET = {0: 0.35, 1: 0.25, 2: 0.2, 3: 0.15, 4: 0.05}
DRAFTS = {
    "equal": TARGET,
    "near": {0: 0.288, 1: 0.312, 2: 0.2, 3: 0.074, 4: 0.126},
    "far": {0: 0.25, 1: 0.119, 2: 0.431, 3: 0.15, 4: 0.05},
    "disjoint": {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0, 4: 0.0, 5: 0.6, 6: 0.4},
    "one-hot": {0: 0.0, 1: 1.0},
}


def match_probability(target: dict[int, float], draft: dict[int, float]) -> float:
    """`sum_i 1 / sum_j max(target_j / target_i, draft_j / draft_i)` (arXiv 2408.07978)."""
    both = [token_id for token_id in target if target[token_id] and draft.get(token_id)]
    every = {*target, *draft}
    return sum(
        1.0 / sum(max(target.get(j, 0.0) / target[i], draft.get(j, 0.0) / draft[i]) for j in every) for i in both
    )


@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
def test_two_laws_pick_the_same_token_as_often_as_the_theory_says(draft: dict[int, float]) -> None:
    """8,000 positions; false-alarm rate 1e-6."""
    padded = {token_id: draft.get(token_id, 0.0) for token_id in range(7)}
    target = {token_id: TARGET.get(token_id, 0.0) for token_id in range(7)}
    rows = 8000
    matches = (
        coupling.race_exact(log_of(target, rows), keys(rows)) == coupling.race_exact(log_of(padded, rows), keys(rows))
    ).sum()
    probability = match_probability(TARGET, draft)
    distance = total_variation(TARGET, draft)
    assert (1.0 - distance) / (1.0 + distance) - 1e-9 <= probability <= 1.0 - distance + 1e-9
    assert_rate(int(matches), rows, min(1.0, probability))


def test_coupling_costs_a_few_points_of_acceptance() -> None:
    """At total variations of 0.138 and 0.231, as with the optimum of 0.862 and 0.769."""
    for draft, distance, expected in ((DRAFTS["near"], 0.138, 0.8), (DRAFTS["far"], 0.231, 0.7)):
        assert total_variation(TARGET, draft) == pytest.approx(distance)
        assert expected < match_probability(TARGET, draft) < 1.0 - distance
