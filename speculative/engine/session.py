"""One sequence in the engine and the pieces of work on it.

Invariant: the model holds keys and values of exactly the first `cached_len` of `token_ids`; whatever it holds behind
them is garbage that the next step overwrites. So rolling back is setting a length.
"""

import itertools
from dataclasses import dataclass, field
from typing import Protocol

from speculative.engine.interface import RowOutcome, RowRequest

_sequence_numbers = itertools.count()


@dataclass(slots=True, eq=False)
class Session:
    """The tokens of one sequence; `committed_len` of them are final, the rest may be rolled back."""

    token_ids: list[int]
    committed_len: int
    cached_len: int = 0
    attached: bool = False
    number: int = field(default_factory=lambda: next(_sequence_numbers))
    """Age: a greater number is a younger session."""
    sequence_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.sequence_id = f"s{self.number}"

    def roll_back(self, length: int) -> None:
        """Forgets all tokens behind `length`, which must not be less than the committed length."""
        if length < self.committed_len:
            raise ValueError(f"cannot roll back to {length}: {self.committed_len} tokens are committed")
        del self.token_ids[length:]
        self.cached_len = min(self.cached_len, length)


class Job(Protocol):
    """A piece of work on one session: one or more steps, each a function of the last one's outcome.

    Tokens to feed are `session.token_ids[session.cached_len:]`, then `extra_token_ids`. The engine feeds them within
    its budget, over several steps if need be, and asks for rows in the last one.
    """

    session: Session

    @property
    def extra_token_ids(self) -> tuple[int, ...]:
        """Tokens fed behind the session's own that do not belong to it (yet): the chunk under verification."""
        ...

    @property
    def num_rows(self) -> int:
        """How many of the last fed tokens want a law; 0 for a mere prefill."""
        ...

    def request(self, first_row: int) -> RowRequest:
        """What to compute from the rows, which begin at `first_row`."""
        ...

    def consume(self, outcome: RowOutcome | None) -> bool:
        """Takes a step's outcome (None when it wanted no rows); True when the job is done.

        The session's own tokens are all cached now, and the extra ones behind them: the job appends what stays to
        the session and sets `cached_len` to its length.
        """
        ...
