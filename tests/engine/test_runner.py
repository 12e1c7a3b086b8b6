"""Steps give the logits of a plain forward pass, however sequences are cut, mixed and rolled back."""

import random

import pytest
import torch

from speculative.engine.interface import Slice
from speculative.engine.runner import TransformersRunner, pack
from tests.support.tiny_models import CONTEXT_LENGTH, VOCAB_SIZE, tiny_model
from tests.support.tiny_runners import SERVED, tiny_runner

TOLERANCE = 2e-4


@pytest.fixture(params=SERVED)
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def plain_logits(architecture: str, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = tiny_model(architecture)(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return logits


def random_ids(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(VOCAB_SIZE) for _ in range(length)]


class Feeder:
    """Feeds one sequence piece by piece."""

    def __init__(self, runner: TransformersRunner, name: str, ids: list[int]) -> None:
        self.runner, self.name, self.ids = runner, name, ids
        self.cached_len = runner.blocks.attach(name, ids)

    def piece(self, size: int, wrong: int = 0) -> Slice:
        """The next `size` tokens, then `wrong` wrong ones that will be rolled back; rows of the right ones."""
        start, stop = self.cached_len, min(self.cached_len + size, len(self.ids))
        fed = self.ids[start:stop] + [(token + 1) % VOCAB_SIZE for token in self.ids[stop : stop + wrong]]
        assert self.runner.blocks.reserve(self.name, start, len(fed))
        self.cached_len = stop
        return Slice(self.name, fed, start, len(fed), self.ids[:start])


def test_ragged_pieces_with_rollback_equal_a_plain_forward(architecture: str) -> None:
    rng = random.Random(0)
    runner = tiny_runner(tiny_model(architecture))
    lengths = [1, 2, 30, CONTEXT_LENGTH, 57, 75]
    feeders = [Feeder(runner, f"f{i}", random_ids(rng, length)) for i, length in enumerate(lengths)]
    expected = {feeder.name: plain_logits(architecture, feeder.ids) for feeder in feeders}
    while active := [feeder for feeder in feeders if feeder.cached_len < len(feeder.ids)]:
        chosen = rng.sample(active, rng.randint(1, len(active)))
        starts = [feeder.cached_len for feeder in chosen]
        slices = [feeder.piece(rng.choice([1, 1, 3, 9, 40]), wrong=rng.choice([0, 0, 4])) for feeder in chosen]
        logits = torch.split(runner.logits(slices), [piece.num_rows for piece in slices])
        for feeder, start, rows in zip(chosen, starts, logits, strict=True):
            right = feeder.cached_len - start
            difference = (rows[:right] - expected[feeder.name][start : feeder.cached_len]).abs().max()
            assert difference < TOLERANCE


def test_sharing_a_committed_prefix_changes_no_logits(architecture: str) -> None:
    rng = random.Random(1)
    runner = tiny_runner(tiny_model(architecture))
    ids = random_ids(rng, 50)
    first = Feeder(runner, "first", ids)
    runner.logits([first.piece(50)])
    runner.blocks.commit("first", ids, 50)
    other = Feeder(runner, "other", ids[:40] + random_ids(rng, 20))
    assert other.cached_len == 40
    difference = (runner.logits([other.piece(20)]) - plain_logits(architecture, other.ids)[40:]).abs().max()
    assert difference < TOLERANCE
    runner.blocks.check_integrity(frozenset({"first", "other"}))
    runner.blocks.release("first")
    runner.blocks.release("other")
    runner.blocks.check_integrity(frozenset())
    assert runner.blocks.free_blocks == runner.blocks.num_blocks


def test_no_rows_are_computed_where_none_are_wanted() -> None:
    runner = tiny_runner(tiny_model("llama"))
    feeder = Feeder(runner, "a", [1, 2, 3])
    piece = feeder.piece(3)
    assert runner.logits([Slice(piece.sequence_id, piece.token_ids, 0, 0, ())]).shape == (0, VOCAB_SIZE)


def test_rows_come_in_the_order_of_the_slices() -> None:
    runner = tiny_runner(tiny_model("llama"))
    feeders = [Feeder(runner, str(i), list(range(i, i + length))) for i, length in enumerate((40, 1, 9, 33))]
    whole = [feeder.piece(99) for feeder in feeders]
    logits = runner.logits([Slice(piece.sequence_id, piece.token_ids, 0, 1, ()) for piece in whole])
    for row, feeder in zip(logits, feeders, strict=True):
        assert (row - plain_logits("llama", feeder.ids)[-1]).abs().max() < TOLERANCE


def test_variable_length_packing_reads_each_sequence_as_long_as_it_is() -> None:
    """What flash kernels get: keys of sequence i are read_index[sum of held before i :][: held[i]]."""
    runner = tiny_runner(tiny_model("llama"))
    lengths = (5, 17, 9)
    feeders = [Feeder(runner, str(i), list(range(length))) for i, length in enumerate(lengths)]
    step = pack([feeder.piece(99) for feeder in feeders], runner.blocks, bucketed=False)
    assert step.fed == step.held == lengths
    assert step.read_index.tolist() == step.write_index.tolist()
    assert len(set(step.read_index.tolist())) == sum(lengths)
