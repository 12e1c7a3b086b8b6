"""The emulated memory keeps its books, and refuses what a real one would only answer wrongly."""

import random
from collections.abc import Callable

import pytest

from speculative.engine.emulated_blocks import CountedBlocks

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


def pool_with(sequence_id: str = "a", tokens: int = 8) -> CountedBlocks:
    """10 blocks of 4 tokens; one sequence holds the first `tokens` of TOKENS."""
    pool = CountedBlocks(10, 4)
    assert pool.attach(sequence_id, TOKENS) == 0
    assert pool.reserve(sequence_id, 0, tokens)
    pool.write(sequence_id, 0, [], TOKENS[:tokens])
    return pool


def test_a_sequence_takes_as_many_blocks_as_its_tokens_need() -> None:
    pool = pool_with(tokens=8)
    assert pool.free_blocks == 8
    assert pool.reserve("a", 8, 0)
    assert pool.reserve("a", 5, 3)
    assert pool.free_blocks == 8
    assert pool.reserve("a", 8, 1)
    assert pool.free_blocks == 7


def test_without_room_nothing_changes() -> None:
    pool = pool_with(tokens=8)
    pool.attach("b", TOKENS)
    assert not pool.reserve("b", 0, 8 * 4 + 1)
    assert not pool.holds("b")
    assert pool.free_blocks == 8
    assert pool.reserve("b", 0, 8 * 4)
    assert pool.free_blocks == 0


def test_release_gives_everything_back_and_may_be_repeated() -> None:
    pool = pool_with()
    assert pool.holds("a")
    pool.release("a")
    pool.release("a")
    pool.release("never seen")
    assert not pool.holds("a")
    assert pool.free_blocks == pool.num_blocks == 10
    pool.check_integrity(frozenset())


def test_integrity_names_unknown_and_missing_sequences() -> None:
    pool = pool_with()
    pool.check_integrity(frozenset({"a"}))
    with pytest.raises(AssertionError, match="unknown sequences"):
        pool.check_integrity(frozenset())
    with pytest.raises(AssertionError, match="not attached"):
        pool.check_integrity(frozenset({"a", "b"}))


def test_rolled_back_tokens_are_overwritten() -> None:
    pool = pool_with(tokens=6)
    pool.write("a", 4, TOKENS[:4], [7, 7])
    with pytest.raises(ValueError, match="does not hold"):
        pool.write("a", 6, TOKENS[:6], [8])
    pool.write("a", 6, [*TOKENS[:4], 7, 7], [8])


@pytest.mark.parametrize(
    ("cached_len", "prefix"),
    [
        pytest.param(8, TOKENS, id="beyond what is held"),
        pytest.param(4, TOKENS[:3], id="length of the prefix"),
        pytest.param(4, [3, 1, 4, 2], id="another last token"),
        pytest.param(4, [4, 1, 4, 1], id="another first token"),
    ],
)
def test_a_step_on_tokens_that_are_not_held_is_refused(cached_len: int, prefix: list[int]) -> None:
    pool = pool_with(tokens=6)
    assert pool.reserve("a", 8, 8)
    with pytest.raises(ValueError, match="does not hold"):
        pool.write("a", cached_len, prefix, [5])


def test_a_step_without_room_is_refused() -> None:
    pool = pool_with(tokens=4)
    with pytest.raises(ValueError, match="no room"):
        pool.write("a", 4, TOKENS[:4], [5])


def test_committed_tokens_may_be_fed_again_but_not_changed() -> None:
    pool = pool_with(tokens=6)
    pool.commit("a", TOKENS, 6)
    pool.write("a", 5, TOKENS[:5], [9, 2])
    with pytest.raises(ValueError, match="changes committed tokens"):
        pool.write("a", 5, TOKENS[:5], [8, 2])


def test_only_held_tokens_can_be_committed() -> None:
    pool = pool_with(tokens=4)
    for tokens, length in ((TOKENS, 5), ([3, 1, 4, 2], 4)):
        with pytest.raises(ValueError, match="to be committed"):
            pool.commit("a", tokens, length)


def test_an_unknown_or_empty_or_second_sequence_is_refused() -> None:
    pool = pool_with()
    attempts: list[Callable[[], object]] = [
        lambda: pool.attach("a", TOKENS),
        lambda: pool.attach("b", []),
        lambda: pool.reserve("c", 0, 1),
    ]
    for attempt in attempts:
        with pytest.raises(ValueError, match="attached"):
            attempt()


def test_no_block_is_lost_over_many_random_sequences() -> None:
    numbers, pool = random.Random(5), CountedBlocks(40, 4)
    lengths: dict[str, int] = {}
    for step in range(3000):
        sequence_id = f"s{numbers.randrange(12)}"
        if sequence_id not in lengths:
            pool.attach(sequence_id, TOKENS)
            lengths[sequence_id] = 0
        cached_len = numbers.randint(0, lengths[sequence_id])
        fed = [numbers.randrange(9)] * numbers.randint(1, 9)
        if not pool.reserve(sequence_id, cached_len, len(fed)) or step % 7 == 0:
            pool.release(sequence_id)
            del lengths[sequence_id]
        else:
            pool.write(sequence_id, cached_len, pool._sequences[sequence_id].held[:cached_len], fed)
            lengths[sequence_id] = cached_len + len(fed)
        pool.check_integrity(frozenset(lengths))
    for sequence_id in lengths:
        pool.release(sequence_id)
    assert pool.free_blocks == 40
