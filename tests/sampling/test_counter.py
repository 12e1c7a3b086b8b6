"""Random numbers are fixed functions of their purpose, and behave as independent uniform ones.

Sample sizes are 2^18 words or 2^14 row keys unless stated; every check has a false-alarm rate of 1e-6.
"""

import functools
import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from speculative.sampling import counter
from speculative.sampling.counter import Stream, row_key
from speculative.sampling.coupling import row_words
from tests.support.statistics import assert_follows

SEED = 20_240_807
IDS = torch.arange(2**15)


def words(keys: list[int], token_ids: torch.Tensor = IDS) -> torch.Tensor:
    return row_words(keys, token_ids).flatten()


@functools.cache
def keys_of_positions() -> list[int]:
    return [row_key(SEED, Stream.RACE, position) for position in range(2**14)]


@functools.cache
def keys_of_seeds() -> list[int]:
    return [row_key(seed, Stream.RACE, 100) for seed in range(2**14)]


def assert_uniform(values: torch.Tensor, bits: int, *, bins: int = 64) -> None:
    """`values` are uniform in 0 ... 2^bits - 1, in `bins` equal bins."""
    assert_follows((values // (2**bits // bins)).tolist(), dict.fromkeys(range(bins), 1 / bins))


def assert_independent(one: torch.Tensor, other: torch.Tensor, *, bins: int = 16) -> None:
    """Pairs of words fill a grid evenly, by their leading bits."""
    width = 2**counter.WORD_BITS // bins
    pairs = zip((one // width).tolist(), (other // width).tolist(), strict=True)
    assert_follows(pairs, dict.fromkeys(itertools.product(range(bins), repeat=2), 1 / bins**2))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (row_key(0, Stream.RACE, 0), (0x2130748AAAC80268, [201131271, 2000914664, 53082939, 1440138464])),
        (row_key(2**64 - 1, Stream.RACE, 2**31), (0x59A46E1AD3A7FC92, [715773661, 2107278876, 2111353104, 2068672568])),
        (row_key(42, Stream.ACCEPT, 7, 5), (0x1B794F9FF386502B, [1038506986, 2101622999, 1941582820, 1617543688])),
    ],
)
def test_numbers_never_change_between_versions(key: int, expected: tuple[int, list[int]]) -> None:
    assert (key, [counter.word(key, token_id) for token_id in (0, 1, 49_151, 151_935)]) == expected


@settings(deadline=None)
@given(
    seeds=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4),
    stream=st.sampled_from(Stream),
    position=st.integers(0, 2**31),
    base_len=st.none() | st.integers(0, 2**31),
    token_ids=st.lists(st.integers(0, 2**20), min_size=1, max_size=20),
)
def test_torch_words_are_the_pure_words_bit_for_bit(
    seeds: list[int], stream: Stream, position: int, base_len: int | None, token_ids: list[int]
) -> None:
    keys = [row_key(seed, stream, position, base_len) for seed in seeds]
    expected = [[counter.word(key, token_id) for token_id in token_ids] for key in keys]
    assert row_words(keys, torch.tensor(token_ids)).tolist() == expected


@pytest.mark.gpu
def test_words_are_the_same_bits_on_the_gpu() -> None:
    keys = [row_key(seed, Stream.RACE, 5) for seed in range(8)]
    assert torch.equal(row_words(keys, IDS.cuda()).cpu(), row_words(keys, IDS))


def test_words_are_uniform_over_ids() -> None:
    assert_uniform(words([row_key(SEED, Stream.RACE, position) for position in range(8)]), counter.WORD_BITS)


@pytest.mark.parametrize("token_id", [0, 1, 32_767])
def test_words_of_an_id_are_uniform_over_positions(token_id: int) -> None:
    assert_uniform(words(keys_of_positions(), torch.tensor([token_id])), counter.WORD_BITS)


@pytest.mark.parametrize("token_id", [0, 1, 32_767])
def test_words_of_an_id_are_uniform_over_seeds(token_id: int) -> None:
    assert_uniform(words(keys_of_seeds(), torch.tensor([token_id])), counter.WORD_BITS)


def test_low_bits_are_uniform_too() -> None:
    values = words([row_key(SEED, Stream.RACE, position) for position in range(8)])
    assert_uniform(values % 2**10, 10)


def test_the_smallest_words_are_uniform() -> None:
    """Races are decided among the smallest; about 2^14 of 2^22 words are below 2^23."""
    values = words([row_key(SEED, Stream.RACE, position) for position in range(128)])
    assert_uniform(values[values < 2**23], 23)


NEIGHBOURS = {
    "position": (row_key(SEED, Stream.RACE, 6), row_key(SEED, Stream.RACE, 7)),
    "seed": (row_key(SEED, Stream.RACE, 6), row_key(SEED + 1, Stream.RACE, 6)),
    "high seed bit": (row_key(SEED, Stream.RACE, 6), row_key(SEED ^ 2**63, Stream.RACE, 6)),
    "seed and position": (row_key(SEED, Stream.RACE, 7), row_key(SEED + 1, Stream.RACE, 6)),
    "stream": (row_key(SEED, Stream.DRAFT, 6, 5), row_key(SEED, Stream.RECOVER, 6, 5)),
    "base length": (row_key(SEED, Stream.DRAFT, 6, 5), row_key(SEED, Stream.DRAFT, 6, 6)),
    "base length and none": (row_key(SEED, Stream.RACE, 6), row_key(SEED, Stream.RACE, 6, 0)),
    "base length and position": (row_key(SEED, Stream.DRAFT, 6, 5), row_key(SEED, Stream.DRAFT, 5, 6)),
}


@pytest.mark.parametrize(("one", "other"), NEIGHBOURS.values(), ids=NEIGHBOURS)
def test_neighbouring_rows_are_independent(one: int, other: int) -> None:
    token_ids = torch.arange(2**18)
    assert_independent(words([one], token_ids), words([other], token_ids))


@pytest.mark.parametrize("distance", [1, 2, 64, 2**14])
def test_neighbouring_ids_are_independent(distance: int) -> None:
    values = words([row_key(SEED, Stream.RACE, position) for position in range(8)]).view(8, -1)
    assert_independent(values[:, :-distance].flatten(), values[:, distance:].flatten())


@pytest.mark.parametrize("row_keys", [keys_of_positions, keys_of_seeds])
def test_two_ids_are_independent_over_positions_and_seeds(row_keys: Callable[[], list[int]]) -> None:
    values = words(row_keys(), torch.tensor([0, 1])).view(-1, 2)
    assert_independent(values[:, 0], values[:, 1])


def test_uniform_numbers_are_uniform_and_never_zero_or_one() -> None:
    numbers = [counter.uniform(row_key(SEED, Stream.ACCEPT, position, 3)) for position in range(2**14)]
    assert 0.0 < min(numbers) < max(numbers) < 1.0
    assert_follows([int(64 * number) for number in numbers], dict.fromkeys(range(64), 1 / 64))
    assert 0.0 < counter.uniform(0) < counter.uniform(2**64 - 1) < 1.0


def test_exponential_numbers_follow_exp_1() -> None:
    key = row_key(SEED, Stream.RACE, 0)
    numbers = [counter.exponential(key, token_id) for token_id in range(2**14)]
    assert_follows([int(-16 * math.expm1(-number)) for number in numbers], dict.fromkeys(range(16), 1 / 16))


def test_a_race_is_won_in_proportion_to_the_weights() -> None:
    weights = {0: 4.0, 17: 2.0, 3: 1.0, 49_151: 0.5, 8: 0.0}
    winners = [counter.race(key, weights.items()) for key in keys_of_positions()]
    assert_follows(winners, {token_id: weight / 7.5 for token_id, weight in weights.items()})


def test_a_race_does_not_depend_on_order_or_scale() -> None:
    weights = [(5, 0.3), (2, 0.5), (9, 0.2)]
    for position in range(200):
        key = row_key(SEED, Stream.RACE, position)
        scaled = [(token_id, 1e-200 * weight) for token_id, weight in reversed(weights)]
        assert counter.race(key, weights) == counter.race(key, scaled)


def test_the_lowest_id_wins_a_tie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counter, "word", lambda key, token_id: 1)
    assert counter.race(0, [(7, 1.0), (3, 1.0), (5, 1.0)]) == 3


def test_a_race_without_weights_is_refused() -> None:
    with pytest.raises(ValueError, match="positive weight"):
        counter.race(0, [(1, 0.0)])
