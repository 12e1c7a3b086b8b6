"""What stands is what the rule says; what comes out has the target's law."""

from collections.abc import Sequence

import pytest

from speculative.sampling import acceptance, counter, distribution
from speculative.sampling.counter import Stream, row_key
from speculative.sampling.types import SparseLaw
from tests.sampling import toy
from tests.support.statistics import assert_follows, assert_rate, total_variation


def judge(
    drafted: Sequence[int], laws: Sequence[SparseLaw], targets: Sequence[toy.Law], seed: int, base_len: int
) -> tuple[int, int]:
    return acceptance.judge(drafted, laws, targets.__getitem__, seed=seed, base_len=base_len)


@pytest.mark.parametrize(
    ("drafted", "picked", "accepted_len"),
    [
        ([], [3], 0),
        ([0, 0], [0, 0, 0], 2),
        ([0], [1, 5], 0),
        ([4, 0, 2], [4, 0, 3, 9], 2),
        ([4, 1, 2], [4, 0, 2, 9], 1),
    ],
)
def test_coupled_accepts_the_longest_matching_prefix(drafted: list[int], picked: list[int], accepted_len: int) -> None:
    assert acceptance.coupled_accepted_len(drafted, picked) == accepted_len


def test_a_draft_token_at_least_as_likely_under_the_target_always_stands() -> None:
    for seed in range(500):
        assert acceptance.rejection_accepted_len([0.3, 0.5], [0.3, 0.9], seed=seed, base_len=seed) == 2


def test_a_draft_token_that_the_target_excludes_never_stands() -> None:
    for seed in range(500):
        assert acceptance.rejection_accepted_len([1e-300], [0.0], seed=seed, base_len=3) == 0


def test_a_token_that_cannot_have_been_drawn_never_stands() -> None:
    assert acceptance.rejection_accepted_len([0.0], [0.7], seed=1, base_len=3) == 0


def test_a_draft_token_stands_at_the_ratio_of_its_probabilities() -> None:
    """5,000 seeds; false-alarm rate 1e-6."""
    accepted = sum(acceptance.rejection_accepted_len([0.8], [0.3], seed=seed, base_len=9) for seed in range(5000))
    assert_rate(accepted, 5000, 0.3 / 0.8)


def test_numbers_of_draft_acceptance_and_recovery_are_different_ones() -> None:
    keys = {row_key(1, stream, 9, 7) for stream in Stream}
    assert len(keys) == len(Stream)
    assert acceptance.recover_key(1, 7, 2) == row_key(1, Stream.RECOVER, 9, 7)


def test_numbers_of_a_later_round_at_the_same_position_are_fresh() -> None:
    assert len({row_key(1, stream, 9, base_len) for stream in Stream for base_len in range(10)}) == 10 * len(Stream)


def test_a_repeated_round_gets_the_same_verdict() -> None:
    target, draft = toy.make_model(1), toy.make_model(2)
    chunk = list(toy.draft_chunk(draft, [], 4, seed=5, law_size=6))
    drafted, laws = [token_id for token_id, _ in chunk], [law for _, law in chunk]
    targets = [target(drafted[:index]) for index in range(5)]
    assert len({judge(drafted, laws, targets, 5, 0) for _ in range(3)}) == 1


def test_the_residual_is_what_the_draft_lacks() -> None:
    left = acceptance.residual({0: 0.5, 1: 0.3, 2: 0.2}, {0: 0.1, 1: 0.6, 3: 0.3})
    assert left == {0: pytest.approx(0.4), 2: pytest.approx(0.2)}


def test_a_residual_of_zero_falls_back_to_the_target() -> None:
    assert acceptance.residual({0: 0.5, 1: 0.5}, {0: 0.5, 1: 0.5}) == {0: 0.5, 1: 0.5}


def test_an_empty_chunk_gives_a_token_of_the_target() -> None:
    """5,000 seeds; false-alarm rate 1e-6."""
    law = toy.make_law(3)
    outcomes = [judge([], [], [law], seed, 12) for seed in range(5000)]
    assert {accepted_len for accepted_len, _ in outcomes} == {0}
    assert_follows((token_id for _, token_id in outcomes), law)


def test_equal_laws_are_accepted_whole() -> None:
    target = toy.make_model(4)
    laws = [distribution.sparsify(target([])), distribution.sparsify(target([2]))]
    exact = [distribution.probabilities(law) for law in laws]  # what fp16 left is the law of both
    for seed in range(300):
        assert judge([2, 1], laws, [*exact, target([1])], seed, 0)[0] == 2


def test_disjoint_laws_are_rejected_and_the_target_speaks() -> None:
    """5,000 seeds; false-alarm rate 1e-6."""
    target = {0: 0.25, 1: 0.75}
    outcomes = [judge([4], [distribution.one_hot(4)], [target, {5: 1.0}], seed, 3) for seed in range(5000)]
    assert {accepted_len for accepted_len, _ in outcomes} == {0}
    assert_follows((token_id for _, token_id in outcomes), target)


@pytest.mark.parametrize(("drafted", "outcome"), [(0, (1, 3)), (2, (0, 0))])
def test_one_hot_laws_are_plain_greedy(drafted: int, outcome: tuple[int, int]) -> None:
    for seed in range(100):
        assert judge([drafted], [distribution.one_hot(drafted)], [{0: 1.0}, {3: 1.0}], seed, 8) == outcome


def test_acceptance_is_one_minus_total_variation() -> None:
    """4,000 rounds; false-alarm rate 1e-6. The best any rule can do with one draft."""
    target, law = toy.make_law(5), distribution.sparsify(toy.make_law(6))
    hits = 0
    for seed in range(4000):
        drafted = distribution.draw(law, row_key(seed, Stream.DRAFT, 7, 7))
        hits += judge([drafted], [law], [target, target], seed, 7)[0]
    assert_rate(hits, 4000, 1.0 - total_variation(target, distribution.probabilities(law)))


PAIRS = {
    "partly agreeing": (toy.make_model(1), toy.make_model(2)),
    "zeros in both": (toy.make_model(3, zeros=2), toy.make_model(4, zeros=3)),
    "same": (toy.make_model(5), toy.make_model(5)),
    "one-hot draft": (toy.make_model(6), toy.one_hot_model(7)),
    "one-hot both": (toy.one_hot_model(8), toy.one_hot_model(9)),
}


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("partly agreeing", 1),
        ("partly agreeing", 3),
        ("zeros in both", 2),
        ("same", 2),
        ("one-hot draft", 2),
        ("one-hot both", 2),
    ],
)
def test_the_first_two_tokens_have_the_target_s_law(name: str, length: int) -> None:
    """3,000 seeds, draft laws cut to 3 of 6 tokens; false-alarm rate 1e-6."""
    target, draft = PAIRS[name]
    outputs = [
        toy.generate(target, draft, judge, seed=seed, tokens=2, length=length, law_size=3, adaptive=False)
        for seed in range(3000)
    ]
    assert_follows(outputs, toy.law_of_two(target))


def test_the_law_holds_when_lengths_depend_on_numbers_used_before() -> None:
    """3,000 seeds, three tokens; false-alarm rate 1e-6."""
    target, draft = PAIRS["partly agreeing"]
    law: dict[tuple[int, ...], float] = {
        (first, second, third): prob * target([second])[third]
        for (first, second), prob in toy.law_of_two(target).items()
        for third in range(toy.VOCAB_SIZE)
    }
    outputs = [
        toy.generate(target, draft, judge, seed=seed, tokens=3, length=3, law_size=4, adaptive=True)
        for seed in range(3000)
    ]
    assert_follows(outputs, law)


def test_the_check_notices_a_law_that_is_not_the_one_drawn_from() -> None:
    """The trap of lossless sampling: the draft takes its likeliest token but sends its whole law."""
    target, draft = PAIRS["partly agreeing"]

    def wrong(
        drafted: Sequence[int], laws: Sequence[SparseLaw], targets: Sequence[toy.Law], seed: int, base_len: int
    ) -> tuple[int, int]:
        likeliest = max(zip(laws[0].weights, laws[0].token_ids, strict=True))[1]
        return judge([likeliest], laws, targets, seed, base_len)

    outputs = [
        toy.generate(target, draft, wrong, seed=seed, tokens=1, length=1, law_size=6, adaptive=False)[0]
        for seed in range(5000)
    ]
    with pytest.raises(AssertionError, match="p-value"):
        assert_follows(outputs, target([]))


def test_the_target_alone_is_the_reference_of_the_check() -> None:
    """5,000 seeds; false-alarm rate 1e-6: plain sampling passes the same check."""
    target, _ = PAIRS["partly agreeing"]

    def plain(seed: int) -> tuple[int, ...]:
        first = counter.race(row_key(seed, Stream.RACE, 0), target([]).items())
        return first, counter.race(row_key(seed, Stream.RACE, 1), target([first]).items())

    assert_follows([plain(seed) for seed in range(5000)], toy.law_of_two(target))
