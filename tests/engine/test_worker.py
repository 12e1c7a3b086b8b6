"""What the engine promises to the event loop, with a runner whose steps the tests hold in their hands."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from speculative.engine.emulated_blocks import CountedBlocks
from speculative.engine.interface import PickRequest, Picks, RowOutcome, RowRequest, Slice
from speculative.engine.session import Session
from speculative.engine.worker import Engine, EngineSettings
from speculative.errors import CapacityError, ContextLengthError, NotReadyError, SessionNotFoundError
from speculative.messages import ModelInfo
from speculative.sampling.types import SamplingParams

INFO = ModelInfo("fake", "0", 100, "f", 50, (0,), "none", "cpu")


class FakeRows:
    """Picks the number of the row."""

    def answer(self, requests: Sequence[RowRequest]) -> list[RowOutcome]:
        return [
            Picks(tuple(range(r.first_row, r.first_row + r.num_rows)), ())
            for r in requests
            if isinstance(r, PickRequest)
        ]


class FakeRunner:
    """Steps wait while `gate` is closed; the next one fails when `failure` is set."""

    def __init__(self) -> None:
        self.info = INFO
        self.blocks = CountedBlocks(100, 4)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.failure: Exception | None = None
        self.steps: list[list[str]] = []

    def forward(self, slices: Sequence[Slice]) -> FakeRows:
        self.steps.append([piece.sequence_id for piece in slices])
        self.entered.set()
        assert self.gate.wait(10)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        for piece in slices:
            self.blocks.write(piece.sequence_id, piece.cached_len, piece.prefix_token_ids, piece.token_ids)
        return FakeRows()


@dataclass(eq=False)
class CountJob:
    """Appends the picked token in each of `steps` steps."""

    session: Session
    steps: int = 1
    extra_token_ids: tuple[int, ...] = ()
    num_rows: int = 1
    picked: list[int] = field(default_factory=list)

    def request(self, first_row: int) -> PickRequest:
        return PickRequest(first_row, 1, len(self.session.token_ids), SamplingParams(), 0)

    def consume(self, outcome: RowOutcome | None) -> bool:
        assert isinstance(outcome, Picks)
        self.picked.append(outcome.token_ids[0])
        self.session.token_ids.append(outcome.token_ids[0])
        self.session.committed_len = len(self.session.token_ids)
        return len(self.picked) == self.steps


class Bench:
    """A runner and its engine."""

    def __init__(self, settings: EngineSettings) -> None:
        self.runner = FakeRunner()
        self.engine = Engine(self.runner, settings)

    async def __aenter__(self) -> "Bench":
        await self.engine.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.runner.gate.set()
        await self.engine.stop()

    async def step_running(self) -> None:
        await asyncio.to_thread(self.runner.entered.wait, 5)


def bench(**settings: int) -> Bench:
    return Bench(EngineSettings(**{"integrity_every_steps": 1, **settings}))


async def until(condition: object, timeout_s: float = 5) -> None:
    assert callable(condition)
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.002)


async def test_a_job_runs_to_its_end_and_tells_its_times() -> None:
    async with bench() as b:
        job = CountJob(b.engine.open([1, 2, 3]), steps=3)
        times = await b.engine.run(job)
        assert job.picked == [0, 0, 0]
        assert times.batch_size == 1
        assert times.forward_ns > 0


async def test_work_that_queues_during_a_step_shares_the_next_one() -> None:
    async with bench() as b, asyncio.TaskGroup() as group:
        sessions = [b.engine.open([i + 1]) for i in range(4)]
        b.runner.gate.clear()
        group.create_task(b.engine.run(CountJob(sessions[0])))
        await b.step_running()
        others = [group.create_task(b.engine.run(CountJob(session))) for session in sessions[1:]]
        await asyncio.sleep(0.05)
        b.runner.gate.set()
        assert [(await other).batch_size for other in others] == [3, 3, 3]


async def test_a_cancelled_job_leaves_and_its_session_gives_everything_back() -> None:
    async with bench() as b:
        session = b.engine.open([1, 2])
        b.runner.gate.clear()
        task = asyncio.create_task(b.engine.run(CountJob(session, steps=1000)))
        await b.step_running()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 1)  # at once, although the step still runs
        b.engine.close(session)
        b.runner.gate.set()
        await until(lambda: b.engine.stats().free_blocks == 100)
        assert b.engine.stats().sessions == 0
        assert b.engine.stats().waiting == 0


async def test_closing_a_session_ends_its_job() -> None:
    async with bench() as b:
        session = b.engine.open([1, 2])
        b.runner.gate.clear()
        task = asyncio.create_task(b.engine.run(CountJob(session, steps=1000)))
        await b.step_running()
        b.engine.close(session)
        b.engine.close(session)
        with pytest.raises(SessionNotFoundError):
            await asyncio.wait_for(task, 1)
        b.runner.gate.set()
        await until(lambda: b.engine.stats().free_blocks == 100)
        with pytest.raises(ValueError, match="closed"):
            await b.engine.run(CountJob(session))


async def test_a_failed_step_fails_its_jobs_only_and_their_sessions_can_go_on() -> None:
    async with bench() as b:
        session = b.engine.open([1, 2])
        await b.engine.run(CountJob(session))
        b.runner.failure = RuntimeError("out of luck")
        with pytest.raises(RuntimeError, match="out of luck"):
            await b.engine.run(CountJob(session))
        job = CountJob(session, steps=2)
        await b.engine.run(job)
        assert job.picked == [0, 0]
        other = CountJob(b.engine.open([5]))
        await b.engine.run(other)
        assert other.picked == [0]


async def test_one_session_too_many_is_refused_at_once_until_one_ends() -> None:
    async with bench(max_sessions=2) as b:
        first = b.engine.open([1])
        b.engine.open([1])
        with pytest.raises(CapacityError):
            b.engine.open([1])
        b.engine.close(first)
        b.engine.open([1])


async def test_one_job_too_many_is_refused_at_once() -> None:
    async with bench(max_queue_len=1) as b, asyncio.TaskGroup() as group:
        b.runner.gate.clear()
        group.create_task(b.engine.run(CountJob(b.engine.open([1]))))
        await b.step_running()
        with pytest.raises(CapacityError):
            await b.engine.run(CountJob(b.engine.open([1])))
        b.runner.gate.set()


async def test_a_prefix_must_leave_room_for_a_token() -> None:
    async with bench() as b:
        b.engine.open([1] * 49)
        with pytest.raises(ContextLengthError) as caught:
            b.engine.open([1] * 50)
        assert (caught.value.needed_len, caught.value.context_len) == (51, 50)


async def test_stopping_fails_what_is_in_flight_and_joins_the_thread() -> None:
    b = bench()
    await b.engine.start()
    b.runner.gate.clear()
    task = asyncio.create_task(b.engine.run(CountJob(b.engine.open([1]), steps=10)))
    await b.step_running()
    stopping = asyncio.create_task(b.engine.stop())
    with pytest.raises(NotReadyError):
        await asyncio.wait_for(task, 1)
    b.runner.gate.set()
    await asyncio.wait_for(stopping, 5)
    with pytest.raises(NotReadyError):
        await b.engine.run(CountJob(b.engine.open([1])))
    assert not [thread for thread in threading.enumerate() if thread.name == "engine"]


async def test_many_random_sessions_leave_nothing_behind() -> None:
    async with bench(max_batch_tokens=16) as b:

        async def visit(length: int, steps: int, patience_s: float) -> None:
            session = b.engine.open([length] * length)
            try:
                async with asyncio.timeout(patience_s):
                    await b.engine.run(CountJob(session, steps=steps))
            except TimeoutError:
                pass
            finally:
                b.engine.close(session)

        async with asyncio.TaskGroup() as group:
            for i in range(150):
                group.create_task(visit(1 + i % 30, 1 + i % 13, 0.001 * (i % 7) if i % 3 else 30))
        await until(lambda: b.engine.stats().free_blocks == 100 and not b.engine.stats().waiting)
        assert b.engine.stats().sessions == 0
        b.engine.check_integrity()
