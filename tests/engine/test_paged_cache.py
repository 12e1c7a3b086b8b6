"""A stateful machine on the paged cache: tokens are where they were put, whatever sequences do, and none is lost."""

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from speculative.engine.paged_cache import PagedBlocks
from tests.support.tiny_models import tiny_model

BLOCK_TOKENS = 4
NUM_BLOCKS = 12


class CacheMachine(RuleBasedStateMachine):
    """Sequences write their token ids as keys; what they read back must be their own."""

    sequences = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.blocks = PagedBlocks(
            tiny_model("mistral").config,
            num_blocks=NUM_BLOCKS,
            block_tokens=BLOCK_TOKENS,
            max_batch_tokens=64,
            device=torch.device("cpu"),
            dtype=torch.float32,
        )
        self.memory = torch.full((self.blocks.cache.cache_tensor.numel(),), -1, dtype=torch.int64)
        self.tokens: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self.committed: dict[str, int] = {}
        self.created = 0

    @rule(target=sequences, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=24))
    def attach(self, tokens: list[int]) -> str:
        name = f"s{self.created}"
        self.created += 1
        held = self.blocks.attach(name, tokens)
        assert held < len(tokens)
        self.tokens[name], self.cached[name], self.committed[name] = tokens, held, held
        self.reads_its_own(name)
        return name

    @rule(name=sequences, count=st.integers(1, 9), wrong=st.integers(0, 3))
    def write(self, name: str, count: int, wrong: int) -> None:
        """Writes the next tokens, then some that are rolled back at once."""
        cached = self.cached[name]
        right = self.tokens[name][cached : cached + count]
        fed = right + [9] * wrong
        if not fed:
            return
        free = self.blocks.free_blocks
        if not self.blocks.reserve(name, cached, len(fed)):
            assert self.blocks.free_blocks == free
            assert -(-(cached + len(fed)) // BLOCK_TOKENS) > free
            return
        self.memory[self.blocks.write_index(name, cached, len(fed))] = torch.tensor(fed)
        self.cached[name] = cached + len(right)
        self.reads_its_own(name)

    @rule(name=sequences, share=st.floats(0, 1))
    def commit(self, name: str, share: float) -> None:
        length = int(self.committed[name] + share * (self.cached[name] - self.committed[name]))
        self.committed[name] = length
        self.blocks.commit(name, self.tokens[name], length)
        self.reads_its_own(name)

    @rule(name=sequences, share=st.floats(0, 1))
    def roll_back(self, name: str, share: float) -> None:
        self.cached[name] = int(self.committed[name] + share * (self.cached[name] - self.committed[name]))

    @rule(name=consumes(sequences))
    def release(self, name: str) -> None:
        self.blocks.release(name)
        self.blocks.release(name)
        assert not self.blocks.holds(name)
        del self.tokens[name], self.cached[name], self.committed[name]

    def reads_its_own(self, name: str) -> None:
        cached = self.cached[name]
        if cached:
            places = self.blocks.read_index([name], cached)[0]
            assert self.memory[places].tolist() == self.tokens[name][:cached]

    @invariant()
    def books_are_right(self) -> None:
        self.blocks.check_integrity(frozenset(self.tokens))
        for name in self.tokens:
            self.reads_its_own(name)

    def teardown(self) -> None:
        for name in self.tokens:
            self.blocks.release(name)
        self.blocks.check_integrity(frozenset())
        assert self.blocks.free_blocks == NUM_BLOCKS


CacheMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
TestCacheMachine = CacheMachine.TestCase


def test_reads_of_shorter_sequences_are_padded() -> None:
    machine = CacheMachine()
    machine.blocks.attach("a", [1])
    machine.blocks.attach("b", [1])
    assert machine.blocks.reserve("a", 0, 3)
    assert machine.blocks.reserve("b", 0, 9)
    places = machine.blocks.read_index(["a", "b"], 9)
    assert places.shape == (2, 9)
    assert places[0, :3].tolist() == machine.blocks.write_index("a", 0, 3)
    assert places[1].tolist() == machine.blocks.write_index("b", 0, 9)
