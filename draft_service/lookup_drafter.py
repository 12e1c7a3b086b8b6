"""Drafting without a model: `--model lookup` proposes only what the committed prefix has said before (lookup.py).

It knows no vocabulary and has no context length: the ids that it proposes are ids that it was sent, so it fits every
target. It says so with an empty fingerprint (docs/protocol.md, "Pairing").
"""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from draft_service.chunk import as_drafted
from draft_service.drafter import as_looked_up, fill
from draft_service.lookup import LookupIndex
from speculative.errors import CapacityError, StalePrefixError
from speculative.messages import Advance, Drafted, DraftOpen, ModelInfo, StopReason

LOOKUP = "lookup"
"""The name that stands for no model."""
_MOST = 2**32 - 1
"""Largest number of a uint32 field."""

INFO = ModelInfo(
    name=LOOKUP,
    revision="1",
    vocab_size=_MOST,
    vocab_fingerprint="",
    context_length=_MOST,
    eos_token_ids=(),
    dtype="none",
    device="cpu",
)
"""What is said of the model that is not there."""


class LookupDrafter:
    """Looks tokens up for many sessions at once."""

    def __init__(self, max_sessions: int, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._max_sessions = max_sessions
        self._clock_ns = clock_ns
        self._sessions = 0

    @property
    def info(self) -> ModelInfo:
        """A model of every vocabulary, without end."""
        return INFO

    @asynccontextmanager
    async def session(self, opening: DraftOpen) -> AsyncIterator["LookupSession"]:
        """A session for the length of the block. Raises CapacityError."""
        if self._sessions >= self._max_sessions:
            raise CapacityError(f"all {self._max_sessions} sessions are in use")
        self._sessions += 1
        try:
            index = LookupIndex()
            await fill(index, opening.prompt_token_ids)
            yield LookupSession(index, opening, self._clock_ns)
        finally:
            self._sessions -= 1


class LookupSession:
    """One committed prefix."""

    def __init__(self, index: LookupIndex, opening: DraftOpen, clock_ns: Callable[[], int]) -> None:
        self._index = index
        self._opening = opening
        self._clock_ns = clock_ns

    async def advance(self, advance: Advance) -> Drafted:
        """Commits tokens and looks up what may follow; see `DraftSession.advance`."""
        started_ns = self._clock_ns()
        self._commit(advance)
        asked = advance.most_looked_up if self._opening.lookup else 0
        tokens = as_looked_up(self._index.propose(asked), self._opening, advance)
        reason = StopReason.MAX_TOKENS if len(tokens) == advance.most_looked_up else StopReason.NO_MATCH
        base_len = len(self._index.token_ids)
        return as_drafted(base_len, tokens, len(tokens), reason, self._clock_ns() - started_ns)

    def _commit(self, advance: Advance) -> None:
        held = self._index.token_ids
        if advance.base_len == len(held):
            self._index.extend(advance.committed_token_ids)
        elif (
            advance.base_len + len(advance.committed_token_ids) != len(held)
            or tuple(held[advance.base_len :]) != advance.committed_token_ids
        ):
            raise StalePrefixError(advance.base_len, len(held))
