"""The engine: one thread that runs steps, and an event loop that never waits for them.

The event loop hands over sessions and jobs through an inbox; the thread drains it between steps, so a cancelled
request is gone at the end of the running one. Scheduler, runner and memory belong to the thread alone.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from speculative.engine.interface import Rows, Runner
from speculative.engine.scheduler import Piece, Scheduler, StepBudget, Work
from speculative.engine.session import Job, Session
from speculative.errors import CapacityError, ContextLengthError, NotReadyError, SessionNotFoundError
from speculative.messages import ModelInfo

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Limits of an engine."""

    max_batch_tokens: int = 512
    """Tokens in one step."""
    max_prompt_tokens: int = 128
    """Tokens of prompts in a step that also serves short work."""
    max_sessions: int = 256
    """Open sessions; one more is refused at once."""
    max_queue_len: int = 1024
    """Waiting jobs; one more is refused at once."""
    integrity_every_steps: int = 1000
    """The scheduler's books are checked after so many steps; 0 never checks."""


@dataclass(frozen=True, slots=True)
class JobTimes:
    """What a job cost."""

    queue_ns: int
    """From its submission to the start of its first step."""
    forward_ns: int
    """All steps it took part in."""
    batch_size: int
    """Sequences in the last of them."""
    queue_len: int
    """Jobs that waited when it ended."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine at a moment."""

    sessions: int
    waiting: int
    free_blocks: int
    num_blocks: int
    steps: int
    evictions: int


@dataclass(slots=True, eq=False)
class _Ticket:
    """A job on its way through the thread."""

    job: Job
    future: asyncio.Future[JobTimes]
    submitted_ns: int
    started_ns: int = 0
    forward_ns: int = 0
    work: Work | None = None


class Engine:
    """Runs jobs on a model, many sessions together. All methods are for the event loop's thread."""

    def __init__(
        self, runner: Runner, settings: EngineSettings, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._runner = runner
        self._settings = settings
        self._clock_ns = clock_ns
        budget = StepBudget(settings.max_batch_tokens, settings.max_prompt_tokens)
        self._scheduler = Scheduler(runner.blocks, budget)
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sessions: set[str] = set()
        self._tickets: dict[int, _Ticket] = {}  # by id of Work; the thread's
        self._in_flight: dict[str, _Ticket] = {}  # by sequence; the event loop's
        self._steps = 0

    @property
    def info(self) -> ModelInfo:
        """The model."""
        return self._runner.info

    async def start(self) -> None:
        """Starts the thread."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Fails what is in flight, lets the running step end and joins the thread."""
        for ticket in list(self._in_flight.values()):
            _fail(ticket.future, NotReadyError("the engine is stopping"))
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def open(self, token_ids: Sequence[int]) -> Session:
        """A session on a committed prefix of at least one token; memory is taken when its first job runs.

        Raises CapacityError when too many are open, ContextLengthError when the prefix leaves no room for a token.
        """
        if not token_ids:
            raise ValueError("a session needs at least one token")
        if len(token_ids) >= self.info.context_length:
            raise ContextLengthError(len(token_ids) + 1, self.info.context_length)
        if len(self._sessions) >= self._settings.max_sessions:
            raise CapacityError(f"all {self._settings.max_sessions} sessions are in use")
        session = Session(list(token_ids), len(token_ids))
        self._sessions.add(session.sequence_id)
        return session

    def close(self, session: Session) -> None:
        """Ends a session: its job is dropped and its memory freed, at once or when the running step ends."""
        if session.sequence_id not in self._sessions:
            return
        self._sessions.discard(session.sequence_id)
        if ticket := self._in_flight.get(session.sequence_id):
            _fail(ticket.future, SessionNotFoundError("the session was closed"))
        self._post(lambda: self._scheduler.close(session))

    async def run(self, job: Job) -> JobTimes:
        """Runs a job to its end. Cancelling the await drops it; the session then is to be closed."""
        if self._thread is None or self._stopping:
            raise NotReadyError("the engine is not running")
        if job.session.sequence_id not in self._sessions:
            raise ValueError("the session is closed")
        if len(self._in_flight) >= self._settings.max_queue_len:
            raise CapacityError(f"all {self._settings.max_queue_len} places in the queue are taken")
        assert self._loop is not None
        ticket = _Ticket(job, self._loop.create_future(), self._clock_ns())
        self._in_flight[job.session.sequence_id] = ticket
        self._post(lambda: self._submit(ticket))
        try:
            return await ticket.future
        except BaseException:
            self._post(lambda: self._drop(ticket))
            raise
        finally:
            del self._in_flight[job.session.sequence_id]

    def stats(self) -> EngineStats:
        """Counts at this moment; those of the thread are as of its last look."""
        blocks, scheduler = self._runner.blocks, self._scheduler
        return EngineStats(
            sessions=len(self._sessions),
            waiting=scheduler.waiting,
            free_blocks=blocks.free_blocks,
            num_blocks=blocks.num_blocks,
            steps=self._steps,
            evictions=scheduler.evictions,
        )

    def check_integrity(self) -> None:
        """Checks the books; only while the thread is stopped or idle."""
        self._scheduler.check_integrity()

    def _post(self, command: Callable[[], None]) -> None:
        with self._wake:
            self._inbox.append(command)
            self._wake.notify()

    # What follows runs in the engine's thread.

    def _run(self) -> None:
        blocked = False  # there is work, but none of it can run before something changes
        while True:
            with self._wake:
                while not self._inbox and not self._stopping and (blocked or not self._scheduler.waiting):
                    self._wake.wait()
                if self._stopping:
                    return
                commands = list(self._inbox)
                self._inbox.clear()
            for command in commands:
                command()
            pieces = self._scheduler.plan()
            blocked = not pieces
            if pieces:
                self._step(pieces)

    def _submit(self, ticket: _Ticket) -> None:
        if ticket.job.session.sequence_id in self._sessions:
            ticket.work = self._scheduler.submit(ticket.job)
            self._tickets[id(ticket.work)] = ticket

    def _drop(self, ticket: _Ticket) -> None:
        if ticket.work is not None:
            self._scheduler.finish(ticket.work)
            self._tickets.pop(id(ticket.work), None)

    def _step(self, pieces: list[Piece]) -> None:
        started_ns = self._clock_ns()
        for piece in pieces:
            ticket = self._tickets[id(piece.work)]
            ticket.started_ns = ticket.started_ns or started_ns
        try:
            rows = self._runner.forward([piece.as_slice() for piece in pieces])
            finished = self._consume(pieces, rows, started_ns)
        except Exception as error:  # noqa: BLE001 - the step's work fails, the engine and all other sessions go on
            _log.exception("a step over %d sequences failed", len(pieces))
            self._fail_step(pieces, error)
            return
        self._steps += 1
        every = self._settings.integrity_every_steps
        if every and self._steps % every == 0:
            self._scheduler.check_integrity()
        self._deliver(finished)

    def _consume(self, pieces: list[Piece], rows: Rows, started_ns: int) -> list[tuple[_Ticket, int]]:
        """Lets every job take its outcome; returns those that are done."""
        wanting = [piece for piece in pieces if piece.final and piece.work.job.num_rows]
        requests, first_row = [], 0
        for piece in wanting:
            requests.append(piece.work.job.request(first_row))
            first_row += piece.work.job.num_rows
        outcomes = dict(zip(map(id, wanting), rows.answer(requests) if requests else [], strict=True))
        forward_ns = self._clock_ns() - started_ns
        finished = []
        for piece in pieces:
            ticket = self._tickets[id(piece.work)]
            ticket.forward_ns += forward_ns
            if self._advance(piece, outcomes.get(id(piece))):
                self._drop(ticket)
                finished.append((ticket, len(pieces)))
        return finished

    def _advance(self, piece: Piece, outcome: object) -> bool:
        """Books a piece's tokens as cached; True when its job is done."""
        session = piece.work.session
        if not piece.final:
            session.cached_len += piece.num_tokens
            done = False
        else:
            session.cached_len = len(session.token_ids)  # extra tokens count only once the job has taken them over
            done = piece.work.job.consume(outcome)  # type: ignore[arg-type]
        held = min(session.cached_len, session.committed_len)
        self._runner.blocks.commit(session.sequence_id, session.token_ids, held)
        return done

    def _fail_step(self, pieces: list[Piece], error: Exception) -> None:
        for piece in pieces:
            ticket = self._tickets[id(piece.work)]
            self._drop(ticket)
            self._scheduler.evict(piece.work.session)
            self._call_loop(lambda ticket=ticket: _fail(ticket.future, error))  # type: ignore[misc]

    def _deliver(self, finished: list[tuple[_Ticket, int]]) -> None:
        if not finished:
            return
        waiting = self._scheduler.waiting

        def resolve() -> None:
            for ticket, batch_size in finished:
                if not ticket.future.done():
                    queue_ns = ticket.started_ns - ticket.submitted_ns
                    ticket.future.set_result(JobTimes(queue_ns, ticket.forward_ns, batch_size, waiting))

        self._call_loop(resolve)

    def _call_loop(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits any more
            self._loop.call_soon_threadsafe(callback)


def _fail(future: asyncio.Future[JobTimes], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
