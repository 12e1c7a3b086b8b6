"""The draft's side of one request: chunks while a draft is well, none while it is not (docs/decisions/0007).

Invariant: whatever the draft does (absent, dead, hung, wrong), the loop goes on with chunks of zero, at once or after
one bounded wait, and the output does not change. A new session is opened in the background, with the committed prefix,
and used once it has answered, so that no round waits for it.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from controller.draft_buffer import DraftBuffer
from controller.policies.base import ChunkPlan
from controller.transport import Clock, Deadline, DraftReplica, DraftSource, DraftStream
from speculative.errors import OutriderError
from speculative.messages import Advance, Drafted, DraftOpen, StopReason

_log = logging.getLogger(__name__)

_FAILURES = (OutriderError, TimeoutError)


@dataclass(frozen=True, slots=True)
class DraftPatience:
    """How long to wait for a draft, in seconds."""

    first_chunk_s: float = 10.0
    """For the first chunk, which processes the prompt."""
    chunk_floor_s: float = 2.0
    """For a later chunk, at least."""
    chunk_multiple: float = 20.0
    """For a later chunk, in multiples of the longest wait so far."""
    chunk_ceiling_s: float = 10.0
    """For a later chunk, at most."""
    warm_up_s: float = 60.0
    """For a session opened in the background to answer."""
    retry_s: float = 0.5
    """Before the first try to open another session; doubled by every further failure in the request."""
    retry_ceiling_s: float = 60.0
    """Between tries, at most: a draft that lets every request down may cost little of its time."""

    def for_chunk(self, longest_wait_ns: int | None) -> float:
        """Patience for a chunk of a session whose longest wait was this; None before its first chunk."""
        if longest_wait_ns is None:
            return self.first_chunk_s
        return min(self.chunk_ceiling_s, max(self.chunk_floor_s, self.chunk_multiple * longest_wait_ns / 1e9))


@dataclass(slots=True)
class _Session:
    """A session at one replica; `told_len` committed tokens are known there."""

    replica: DraftReplica
    told_len: int
    stream: DraftStream | None = None
    longest_wait_ns: int | None = None
    """Longest wait for a chunk, the first one left out: it includes the prompt."""

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()


class Drafting:
    """Asks drafts for the chunks of one request. `open_message` makes the Open for a committed prefix."""

    def __init__(
        self,
        source: DraftSource,
        buffer: DraftBuffer,
        open_message: Callable[[tuple[int, ...]], DraftOpen],
        patience: DraftPatience,
        deadline: Deadline,
        clock: Clock,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._source = source
        self._buffer = buffer
        self._open_message = open_message
        self._patience = patience
        self._deadline = deadline
        self._clock = clock
        self._tasks = tasks
        self._retry_s = patience.retry_s
        self._session: _Session | None = None
        self._reopening: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Chooses a draft. The first `advance` opens its session, so that its prompt overlaps the verifier's."""
        replica = self._source.pick()
        if replica is not None and replica.trusted:
            self._session = _Session(replica, self._buffer.committed_len)
        else:
            self._reopen(after_s=self._patience.retry_s if replica is None else 0.0)

    def close(self) -> None:
        """Ends the session and the search for one."""
        if self._reopening is not None:
            self._reopening.cancel()
        if self._session is not None:
            self._session.close()

    @property
    def max_tokens(self) -> int:
        """Most tokens that can be asked for now; 0 while there is no draft."""
        if self._session is None:
            return 0
        return max(0, min(self._session.replica.limits.max_chunk_tokens, self._room(self._session)))

    def _room(self, session: _Session) -> int:
        """How many tokens fit into the draft's context behind the committed ones."""
        return session.replica.info.context_length - self._buffer.committed_len

    @property
    def has_model(self) -> bool:
        """Whether there is a draft now, and one that does more than look up."""
        return self._session is not None and not self._session.replica.info.fits_any_vocabulary

    async def advance(self, plan: ChunkPlan, max_lookup_tokens: int | None = None) -> bool:
        """Tells the draft what was committed and asks for a chunk; False if there is nobody to ask or nothing asked.

        `max_lookup_tokens`: how many of its tokens may be looked up, if not as many as the plan says.
        """
        session = self._session
        if session is None or plan.max_tokens == 0:
            return False
        message = self._buffer.advance(
            session.told_len,
            plan.max_tokens,
            plan.stop_entropy_nats,
            plan.stop_prob,
            plan.stop_survival,
            max_lookup_tokens,
        )
        try:
            async with asyncio.timeout(self._patience.for_chunk(session.longest_wait_ns)):
                if session.stream is None:
                    session.stream = await self._open(session.replica)
                await session.stream.advance(message)
        except _FAILURES as error:
            self._lose(session, error)
            return False
        session.told_len = self._buffer.committed_len
        return True

    async def drafted(self) -> Drafted | None:
        """Waits for the chunk and puts it into the buffer; None if the draft is lost over it."""
        session = self._session
        if session is None or session.stream is None:
            raise ValueError("out of turn: no chunk was asked for")
        begun_ns = self._clock()
        try:
            async with asyncio.timeout(self._patience.for_chunk(session.longest_wait_ns)):
                drafted = await session.stream.drafted()
            self._buffer.take(drafted)
        except _FAILURES as error:
            self._lose(session, error)
            return None
        first = session.longest_wait_ns is None
        session.longest_wait_ns = 0 if first else max(session.longest_wait_ns or 0, self._clock() - begun_ns)
        session.replica.report(well=True)
        if drafted.stop_reason is StopReason.CONTEXT or self._room(session) <= len(drafted.token_ids):
            self._session = None  # for good: its context is full, and every other draft has the same
            session.close()
        return drafted

    async def _open(self, replica: DraftReplica) -> DraftStream:
        return await replica.open(self._open_message(self._buffer.committed_token_ids), self._deadline.remaining_s())

    def _lose(self, session: _Session, error: Exception) -> None:
        """Goes on without a draft and starts looking for another."""
        _log.warning("draft lost", extra={"model": session.replica.info.name, "reason": _reason(error)})
        session.replica.report(well=False)
        session.close()
        self._session = None
        self._buffer.drop()
        self._reopen(after_s=self._next_retry_s())

    def _reopen(self, after_s: float) -> None:
        self._reopening = self._tasks.create_task(self._find_session(after_s))

    async def _find_session(self, after_s: float) -> None:
        """Tries until a draft has answered, ever less often."""
        while True:
            await asyncio.sleep(after_s)
            replica = self._source.pick()
            if replica is None:
                after_s = self._patience.retry_s
            elif session := await self._warm_up(replica):
                self._session = session
                return
            else:
                after_s = self._next_retry_s()

    def _next_retry_s(self) -> float:
        after_s, self._retry_s = self._retry_s, min(self._patience.retry_ceiling_s, 2 * self._retry_s)
        return after_s

    async def _warm_up(self, replica: DraftReplica) -> _Session | None:
        """A session that has processed the committed prefix and answered an Advance for no tokens; None on failure."""
        session = _Session(replica, self._buffer.committed_len, longest_wait_ns=0)
        try:
            async with asyncio.timeout(self._patience.warm_up_s):
                session.stream = await self._open(replica)
                await session.stream.advance(Advance(session.told_len, (), 0))
                await session.stream.drafted()
        except _FAILURES as error:
            _log.info("draft not usable", extra={"model": replica.info.name, "reason": _reason(error)})
            session.close()
            replica.report(well=False)
            return None
        except BaseException:
            session.close()
            raise
        replica.report(well=True)
        return session


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
