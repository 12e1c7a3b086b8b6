"""Memory of an emulated model: counted blocks, and the tokens that a real model would hold keys and values of.

It keeps the books of a real pool, and is stricter: a step that builds on tokens which are not held, or writes without
room, is refused, where a real model would only answer wrongly. Prefixes are not shared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Sequence:
    """What one sequence has: a number of blocks, and the tokens written into them; the first ones are final."""

    num_blocks: int = 0
    held: list[int] = field(default_factory=list)
    committed_len: int = 0


class CountedBlocks:
    """A BlockPool (interface.py) without memory behind it."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self._num_blocks = num_blocks
        self._block_tokens = block_tokens
        self._free_blocks = num_blocks
        self._sequences: dict[str, _Sequence] = {}

    @property
    def block_tokens(self) -> int:
        """Tokens in a block."""
        return self._block_tokens

    @property
    def num_blocks(self) -> int:
        """All blocks."""
        return self._num_blocks

    @property
    def free_blocks(self) -> int:
        """Blocks that no sequence holds."""
        return self._free_blocks

    def attach(self, sequence_id: str, token_ids: Sequence[int]) -> int:
        """Starts a sequence; always 0, as nothing is shared. Raises ValueError if it is empty or attached already."""
        if not token_ids or sequence_id in self._sequences:
            raise ValueError(f"sequence {sequence_id} is empty or attached already")
        self._sequences[sequence_id] = _Sequence()
        return 0

    def reserve(self, sequence_id: str, cached_len: int, extend_len: int) -> bool:
        """Makes room for `extend_len` tokens behind `cached_len`; False, and nothing changed, if there is none."""
        sequence = self._attached(sequence_id)
        missing = -(-(cached_len + extend_len) // self._block_tokens) - sequence.num_blocks
        if missing > self._free_blocks:
            return False
        if missing > 0:
            sequence.num_blocks += missing
            self._free_blocks -= missing
        return True

    def write(self, sequence_id: str, cached_len: int, prefix: Sequence[int], token_ids: Sequence[int]) -> None:
        """Writes `token_ids` behind the first `cached_len` held tokens, over whatever was there.

        Raises ValueError if the sequence does not hold `prefix` there, has no room, or would change final tokens.
        """
        sequence = self._attached(sequence_id)
        held, final = sequence.held, sequence.committed_len
        if len(prefix) != cached_len or held[final:cached_len] != list(prefix[final:]) or cached_len > len(held):
            raise ValueError(f"sequence {sequence_id} does not hold the {cached_len} tokens the step builds on")
        if held[cached_len:final] != list(token_ids[: max(0, final - cached_len)]):
            raise ValueError(f"the step changes committed tokens of sequence {sequence_id} behind {cached_len}")
        if cached_len + len(token_ids) > sequence.num_blocks * self._block_tokens:
            raise ValueError(f"sequence {sequence_id} has no room for {len(token_ids)} tokens behind {cached_len}")
        held[cached_len:] = token_ids

    def commit(self, sequence_id: str, token_ids: Sequence[int], cached_len: int) -> None:
        """Makes the first `cached_len` of `token_ids` final. Raises ValueError if the sequence does not hold them."""
        sequence = self._attached(sequence_id)
        start = sequence.committed_len
        if sequence.held[start:cached_len] != list(token_ids[start:cached_len]) or cached_len > len(sequence.held):
            raise ValueError(f"sequence {sequence_id} does not hold the {cached_len} tokens to be committed")
        sequence.committed_len = max(start, cached_len)

    def holds(self, sequence_id: str) -> bool:
        """Whether the sequence holds at least one block."""
        return sequence_id in self._sequences and self._sequences[sequence_id].num_blocks > 0

    def release(self, sequence_id: str) -> None:
        """Gives back everything the sequence holds; harmless if it holds nothing."""
        if sequence := self._sequences.pop(sequence_id, None):
            self._free_blocks += sequence.num_blocks

    def check_integrity(self, sequence_ids: frozenset[str]) -> None:
        """Raises AssertionError unless exactly these sequences are attached and all blocks are accounted for."""
        attached = self._sequences.keys()
        assert attached <= sequence_ids, f"blocks held by unknown sequences: {sorted(attached - sequence_ids)}"
        assert sequence_ids <= attached, f"sequences that are not attached: {sorted(sequence_ids - attached)}"
        for sequence_id, sequence in self._sequences.items():
            room = sequence.num_blocks * self._block_tokens
            assert len(sequence.held) <= room, f"{sequence_id} holds {len(sequence.held)} tokens in room for {room}"
        held_blocks = sum(sequence.num_blocks for sequence in self._sequences.values())
        accounted = held_blocks + self._free_blocks
        assert accounted == self._num_blocks, f"{accounted} of {self._num_blocks} blocks are accounted for"

    def _attached(self, sequence_id: str) -> _Sequence:
        if sequence_id not in self._sequences:
            raise ValueError(f"sequence {sequence_id} is not attached")
        return self._sequences[sequence_id]
