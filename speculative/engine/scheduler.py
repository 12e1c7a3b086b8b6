"""Decides what goes into the next step: continuous batching without timers, without tensors and without I/O.

While a step runs, work queues; when it ends, everything ready goes into the next one within a token budget. Short
work (draft steps, verifications) goes first, and a share of the budget stays with long prompts, which are cut into
pieces: neither waits for the other for ever. When blocks run out the youngest session is evicted and recomputed later
from its tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from speculative.engine.interface import BlockPool, Slice
from speculative.engine.session import Job, Session


@dataclass(frozen=True, slots=True)
class StepBudget:
    """Limits of one step, in tokens."""

    max_batch_tokens: int = 512
    """All tokens of a step."""
    max_prompt_tokens: int = 128
    """Tokens of prompts in a step that also serves short work; alone, prompts may use the whole step."""
    short_tokens: int = 64
    """Work of at most this many tokens is short."""


@dataclass(slots=True, eq=False)
class Work:
    """A job in the queue, in order of arrival."""

    job: Job
    arrival: int

    @property
    def session(self) -> Session:
        """The sequence it works on."""
        return self.job.session

    @property
    def pending_tokens(self) -> int:
        """Tokens still to be fed, the job's extra ones included."""
        return len(self.session.token_ids) - self.session.cached_len + len(self.job.extra_token_ids)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one job gets of a step: its next `num_tokens` tokens; `final` when its rows come with them."""

    work: Work
    num_tokens: int
    final: bool

    def as_slice(self) -> Slice:
        """The piece as the runner takes it."""
        session, job = self.work.session, self.work.job
        start = session.cached_len
        fed = (session.token_ids[start:] + list(job.extra_token_ids))[: self.num_tokens]
        rows = job.num_rows if self.final else 0
        return Slice(session.sequence_id, fed, start, rows, session.token_ids[:start])


@dataclass(slots=True)
class Scheduler:
    """The queue and the sessions' memory. Not thread-safe: one thread owns it."""

    blocks: BlockPool
    budget: StepBudget
    evictions: int = 0
    _queue: list[Work] = field(default_factory=list)
    _attached: dict[str, Session] = field(default_factory=dict)
    _arrivals: int = 0

    def submit(self, job: Job) -> Work:
        """Queues a job; a session has at most one at a time."""
        if any(work.session is job.session for work in self._queue):
            raise ValueError("the session already has a job")
        if max(job.num_rows, len(job.extra_token_ids) + 1) > self.budget.max_batch_tokens:
            raise ValueError("the job needs more rows than a step has tokens")
        work = Work(job, self._arrivals)
        self._arrivals += 1
        self._queue.append(work)
        return work

    def finish(self, work: Work) -> None:
        """Takes a job off the queue; harmless if it is gone."""
        if work in self._queue:
            self._queue.remove(work)

    def close(self, session: Session) -> None:
        """Drops the session's job and gives its memory back."""
        self._queue = [work for work in self._queue if work.session is not session]
        self._detach(session)

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return len(self._queue)

    def plan(self) -> list[Piece]:
        """The pieces of the next step, each with room reserved; empty when nothing can run."""
        pieces: list[Piece] = []
        room = self.budget.max_batch_tokens
        for work, limit in self._candidates():
            # One that has just been evicted for an older one waits for the next step.
            piece = self._piece(work, min(room, limit)) if work.session.attached else None
            if piece is None or not self._make_room(piece, pieces):
                continue
            pieces.append(piece)
            room -= piece.num_tokens
        if not pieces and self._queue:
            pieces = self._force_oldest()
        return pieces

    def _candidates(self) -> Iterator[tuple[Work, int]]:
        """Short work first, then prompts, each in order of arrival, with the tokens it may use."""
        for work in self._queue:
            self._attach(work.session)
        short = [work for work in self._queue if work.pending_tokens <= self.budget.short_tokens]
        long = [work for work in self._queue if work.pending_tokens > self.budget.short_tokens]
        share = min(self.budget.max_prompt_tokens, self.budget.max_batch_tokens // 2)
        reserved = share if long else 0
        left = self.budget.max_batch_tokens - reserved
        for work in short:
            yield work, left
            left -= work.pending_tokens
        for work in long:
            yield work, (share if short else self.budget.max_batch_tokens)

    def _piece(self, work: Work, limit: int) -> Piece | None:
        """As much of the work as fits; its rows all come from one step, so the last tokens are never cut apart."""
        pending = work.pending_tokens
        if pending <= limit:
            return Piece(work, pending, final=True)
        size = min(limit, pending - max(work.job.num_rows, len(work.job.extra_token_ids) + 1))
        return Piece(work, size, final=False) if size > 0 else None

    def _make_room(self, piece: Piece, pieces: list[Piece], *, force: bool = False) -> bool:
        """Reserves blocks; evicts sessions younger than this one (any idle one when forced), youngest first."""
        session = piece.work.session
        while not self.blocks.reserve(session.sequence_id, session.cached_len, piece.num_tokens):
            victim = self._victim(session, pieces, force=force)
            if victim is None:
                return False
            self._detach(victim)
            self.evictions += 1
        return True

    def _victim(self, session: Session, pieces: list[Piece], *, force: bool) -> Session | None:
        planned = {id(piece.work.session) for piece in pieces}
        candidates = [
            candidate
            for candidate in self._attached.values()
            if id(candidate) not in planned
            and candidate is not session
            and (force or candidate.number > session.number)
            and self.blocks.holds(candidate.sequence_id)
        ]
        return max(candidates, key=lambda candidate: candidate.number, default=None)

    def _force_oldest(self) -> list[Piece]:
        """Nothing fits while others hold the memory between their rounds: the oldest job takes what it needs."""
        work = self._queue[0]
        self._attach(work.session)
        piece = self._piece(work, self.budget.max_batch_tokens)
        if piece is None or not self._make_room(piece, [], force=True):
            return []
        return [piece]

    def _attach(self, session: Session) -> None:
        if not session.attached:
            session.cached_len = self.blocks.attach(session.sequence_id, session.token_ids)
            session.attached = True
            self._attached[session.sequence_id] = session

    def _detach(self, session: Session) -> None:
        """Gives the session's memory back; its tokens stay, and are fed again when it next runs."""
        self._attached.pop(session.sequence_id, None)
        self.blocks.release(session.sequence_id)
        session.attached = False
        session.cached_len = 0

    def evict(self, session: Session) -> None:
        """Forgets what is cached for the session (after a failed step its content is unknown)."""
        self._detach(session)

    def check_integrity(self) -> None:
        """Raises AssertionError unless queue, sessions and blocks agree."""
        for session in self._attached.values():
            assert session.attached, f"{session.sequence_id} is listed but not attached"
            assert session.committed_len <= len(session.token_ids), f"{session.sequence_id} committed beyond its end"
            assert session.cached_len <= len(session.token_ids), f"{session.sequence_id} cached beyond its end"
        sessions = [work.session for work in self._queue]
        assert len({id(session) for session in sessions}) == len(sessions), "a session has two jobs"
        arrivals = [work.arrival for work in self._queue]
        assert arrivals == sorted(arrivals), "the queue is out of order"
        self.blocks.check_integrity(frozenset(self._attached))
