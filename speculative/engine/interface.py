"""What the engine asks of a model, and a service of the engine: the seams between scheduler, model and sampling.

One *step* is one forward pass over any number of sequences. Each sequence feeds some new tokens (a piece of a prompt,
one draft step, k + 1 verification positions: no special path) and wants the next-token laws (*rows*) behind its last
`num_rows` tokens. A real model answers with `TorchRows` (rows.py), an emulated one with rows of its own; both judge
and draw by the same rules (sampling/), so everything above this file is the same for both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from speculative.messages import ModelInfo
from speculative.sampling.adasd import Adasd
from speculative.sampling.types import NO_SIGNALS, SamplingParams, Signal, Signals, SparseLaw


@dataclass(frozen=True, slots=True)
class Slice:
    """What one sequence feeds into a step: `token_ids` behind `cached_len` tokens whose keys and values are held.

    `prefix_token_ids` are all tokens before them (an emulated model has no cache and reads the context from here).
    """

    sequence_id: str
    token_ids: Sequence[int]
    cached_len: int
    num_rows: int
    prefix_token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class PickRequest:
    """Coupled (or greedy) picks at `num_rows` rows from `first_row`; the first picks absolute position `position`.

    What is wanted besides is of the warped law; at temperature 0, where that is one-hot, of the law at temperature 1
    without cuts. It never changes the picks. `signals` are wanted of all rows but the last, the verifier's own;
    `draft_laws` has the draft's law at each of those, if a signal needs it.
    """

    first_row: int
    num_rows: int
    position: int
    params: SamplingParams
    seed: int
    want_entropy: bool = False
    want_prob: bool = False
    want_law: bool = False
    draft_laws: tuple[SparseLaw, ...] = ()
    signals: frozenset[Signal] = frozenset()


@dataclass(frozen=True, slots=True)
class Picks:
    """One token for each row; for each also its law's entropy (nats), its probability, and its law cut; if wanted."""

    token_ids: tuple[int, ...]
    entropies_nats: tuple[float, ...]
    probs: tuple[float, ...] = ()
    laws: tuple[SparseLaw, ...] = ()
    signals: Signals = NO_SIGNALS


@dataclass(frozen=True, slots=True)
class DrawRequest:
    """One draft token at row `first_row`, drawn from a sparse, fp16-quantised law; for the rejection rule.

    The random number is keyed by (seed, position, base_len): a position drafted again in a later round gets a fresh
    one, because the lengths of rounds may depend on numbers used before.
    """

    first_row: int
    position: int
    base_len: int
    params: SamplingParams
    seed: int


@dataclass(frozen=True, slots=True)
class Draw:
    """The token, the law it was drawn from, and the entropy (nats) of the full warped law."""

    token_id: int
    law: SparseLaw
    entropy_nats: float


@dataclass(frozen=True, slots=True)
class JudgeRequest:
    """Rejection sampling of `draft_token_ids` at rows `first_row` ... `first_row + len(draft_token_ids)`.

    `base_len` is the committed length, hence the absolute position of the first draft token. With `adasd` that rule
    says which tokens stand, and learns from them; it must be the session's own. `signals` as in `PickRequest`.
    """

    first_row: int
    base_len: int
    draft_token_ids: tuple[int, ...]
    laws: tuple[SparseLaw, ...]
    params: SamplingParams
    seed: int
    signals: frozenset[Signal] = frozenset()
    adasd: Adasd | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """How many draft tokens stand and the target's own token behind them; and the signals of all draft tokens."""

    accepted_len: int
    next_token_id: int
    signals: Signals = NO_SIGNALS


RowRequest = PickRequest | DrawRequest | JudgeRequest
RowOutcome = Picks | Draw | Judgement


class Rows(Protocol):
    """The next-token laws of one step, in the order of its slices."""

    def answer(self, requests: Sequence[RowRequest]) -> list[RowOutcome]:
        """One outcome for each request, in order; computed together where that is faster."""
        ...


class BlockPool(Protocol):
    """Memory for keys and values, in blocks of `block_tokens` tokens, each sequence holding a list of them."""

    @property
    def block_tokens(self) -> int:
        """Tokens in a block."""
        ...

    @property
    def num_blocks(self) -> int:
        """All blocks."""
        ...

    @property
    def free_blocks(self) -> int:
        """Blocks that a new sequence could get, those kept only for reuse included."""
        ...

    def attach(self, sequence_id: str, token_ids: Sequence[int]) -> int:
        """Starts a sequence; returns how many of its first tokens are already held (shared prefix), never all."""
        ...

    def reserve(self, sequence_id: str, cached_len: int, extend_len: int) -> bool:
        """Makes room for `extend_len` tokens behind `cached_len`; False, and nothing changed, if there is none."""
        ...

    def commit(self, sequence_id: str, token_ids: Sequence[int], cached_len: int) -> None:
        """Says that the first `cached_len` of `token_ids` are held and final, so that others may share them."""
        ...

    def holds(self, sequence_id: str) -> bool:
        """Whether the sequence holds at least one block."""
        ...

    def release(self, sequence_id: str) -> None:
        """Gives back everything the sequence holds; harmless if it holds nothing."""
        ...

    def check_integrity(self, sequence_ids: frozenset[str]) -> None:
        """Raises AssertionError unless exactly these sequences hold blocks and all blocks are accounted for."""
        ...


class Runner(Protocol):
    """A loaded model with its memory. Called from one thread only."""

    @property
    def info(self) -> ModelInfo:
        """What the model is."""
        ...

    @property
    def blocks(self) -> BlockPool:
        """Its memory."""
        ...

    def forward(self, slices: Sequence[Slice]) -> Rows:
        """One step. Every slice has room reserved. Row i of a slice is the law behind its token `-num_rows + i`."""
        ...
