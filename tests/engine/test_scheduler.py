"""What the scheduler promises, with counted blocks and scripted jobs."""

import random
from dataclasses import dataclass, field

import pytest

from speculative.engine.emulated_blocks import CountedBlocks
from speculative.engine.interface import PickRequest, RowOutcome
from speculative.engine.scheduler import Piece, Scheduler, StepBudget
from speculative.engine.session import Session
from speculative.sampling.types import SamplingParams


@dataclass(eq=False)
class ScriptedJob:
    """Feeds the session's tokens and some extra ones; finished after `steps` steps that each append a token."""

    session: Session
    extra_token_ids: tuple[int, ...] = ()
    num_rows: int = 1
    steps: int = 1
    fed: list[int] = field(default_factory=list)

    def request(self, first_row: int) -> PickRequest:
        return PickRequest(first_row, self.num_rows, len(self.session.token_ids), SamplingParams(), 0)

    def consume(self, outcome: RowOutcome | None) -> bool:
        self.steps -= 1
        self.session.token_ids.append(7)
        self.session.committed_len = len(self.session.token_ids)
        return self.steps == 0


def make(num_blocks: int = 100, block_tokens: int = 4, **budget: int) -> Scheduler:
    return Scheduler(CountedBlocks(num_blocks, block_tokens), StepBudget(**budget))


def session(length: int) -> Session:
    return Session(list(range(length)), length)


def run_step(scheduler: Scheduler) -> list[Piece]:
    """Plans a step and books it as the engine does."""
    pieces = scheduler.plan()
    for piece in pieces:
        assert isinstance(scheduler.blocks, CountedBlocks)
        fed = piece.as_slice()
        scheduler.blocks.write(fed.sequence_id, fed.cached_len, fed.prefix_token_ids, fed.token_ids)
        owner = piece.work.session
        if not piece.final:
            owner.cached_len += piece.num_tokens
        else:
            owner.cached_len = len(owner.token_ids)
            if piece.work.job.consume(None):
                scheduler.finish(piece.work)
    scheduler.check_integrity()
    return pieces


def test_all_ready_work_shares_a_step() -> None:
    scheduler = make()
    sessions = [session(n) for n in (3, 1, 9)]
    for owner in sessions:
        scheduler.submit(ScriptedJob(owner))
    assert [piece.num_tokens for piece in run_step(scheduler)] == [3, 1, 9]
    assert scheduler.waiting == 0


def test_a_long_prompt_is_cut_and_short_work_goes_with_every_piece() -> None:
    scheduler = make(max_batch_tokens=32, max_prompt_tokens=8, short_tokens=4)
    prompt, chat = session(40), session(2)
    scheduler.submit(ScriptedJob(prompt))
    scheduler.submit(ScriptedJob(chat, steps=3))
    served = []
    while scheduler.waiting:
        pieces = run_step(scheduler)
        served.append({piece.work.session: piece.num_tokens for piece in pieces})
    assert [step.get(chat) for step in served[:3]] == [2, 1, 1]
    assert [step[prompt] for step in served] == [8, 8, 8, 16]
    assert sum(step[prompt] for step in served) == 40


def test_a_long_prompt_is_not_starved_by_short_work() -> None:
    scheduler = make(num_blocks=1000, max_batch_tokens=16, max_prompt_tokens=8, short_tokens=4)
    prompt = session(64)
    scheduler.submit(ScriptedJob(prompt))
    for _ in range(32):
        scheduler.submit(ScriptedJob(session(1), steps=1000))
    for _ in range(8):
        run_step(scheduler)
    assert prompt.committed_len == 65


def test_every_short_job_is_served_when_they_exceed_the_budget() -> None:
    scheduler = make(num_blocks=1000, max_batch_tokens=8, short_tokens=4)
    jobs = [ScriptedJob(session(3)) for _ in range(10)]
    for job in jobs:
        scheduler.submit(job)
    for _ in range(5):
        run_step(scheduler)
    assert scheduler.waiting == 0


def test_rows_of_a_chunk_come_from_one_step() -> None:
    scheduler = make(max_batch_tokens=8, short_tokens=4)
    owner = session(13)
    scheduler.submit(ScriptedJob(owner, extra_token_ids=(1, 2, 3, 4), num_rows=5))
    pieces = []
    while scheduler.waiting:
        pieces += run_step(scheduler)
    assert [piece.num_tokens for piece in pieces] == [8, 4, 5]
    assert [piece.as_slice().num_rows if piece.final else 0 for piece in pieces[:2]] == [0, 0]


def test_a_job_with_more_rows_than_a_step_has_tokens_is_refused() -> None:
    scheduler = make(max_batch_tokens=8)
    with pytest.raises(ValueError, match="more rows"):
        scheduler.submit(ScriptedJob(session(3), extra_token_ids=(1,) * 8, num_rows=9))


def test_a_session_has_one_job_at_a_time() -> None:
    scheduler = make()
    owner = session(3)
    scheduler.submit(ScriptedJob(owner))
    with pytest.raises(ValueError, match="already has a job"):
        scheduler.submit(ScriptedJob(owner))


def test_the_youngest_session_is_evicted_and_recomputed_from_its_tokens() -> None:
    scheduler = make(num_blocks=4, block_tokens=4)
    old, young = session(8), session(8)
    old_job, young_job = ScriptedJob(old, steps=6), ScriptedJob(young, steps=2)
    scheduler.submit(old_job)
    scheduler.submit(young_job)
    while scheduler.waiting:
        run_step(scheduler)
    assert scheduler.evictions >= 1
    assert old.token_ids == [*range(8), *[7] * 6]
    assert young.token_ids == [*range(8), *[7] * 2]


def test_an_older_session_is_never_evicted_for_a_working_younger_one() -> None:
    scheduler = make(num_blocks=4, block_tokens=4)
    old, young = session(15), session(4)
    scheduler.submit(ScriptedJob(old, steps=1))
    scheduler.submit(ScriptedJob(young))
    pieces = run_step(scheduler)
    assert [piece.work.session for piece in pieces] == [old]
    assert old.attached


def test_idle_sessions_give_way_when_nothing_else_can_run() -> None:
    scheduler = make(num_blocks=4, block_tokens=4)
    idle, wanting = session(15), session(9)
    scheduler.submit(ScriptedJob(idle))
    run_step(scheduler)
    scheduler.submit(ScriptedJob(wanting))
    assert [piece.work.session for piece in run_step(scheduler)] == [wanting]
    assert not idle.attached
    assert idle.cached_len == 0


def test_closing_frees_everything_and_drops_the_job() -> None:
    scheduler = make(num_blocks=4)
    owner = session(8)
    scheduler.submit(ScriptedJob(owner, steps=100))
    run_step(scheduler)
    scheduler.close(owner)
    assert scheduler.blocks.free_blocks == 4
    assert scheduler.waiting == 0
    scheduler.check_integrity()


@pytest.mark.parametrize("seed", range(20))
def test_random_schedules_end_with_every_token_fed_once_and_no_block_lost(seed: int) -> None:
    rng = random.Random(seed)
    scheduler = make(num_blocks=rng.randint(8, 30), block_tokens=4, max_batch_tokens=16, short_tokens=4)
    live: list[Session] = []
    for _ in range(200):
        if rng.random() < 0.3:
            owner = session(rng.randint(1, 20))
            live.append(owner)
            scheduler.submit(ScriptedJob(owner, steps=rng.randint(1, 8)))
        if live and rng.random() < 0.1:
            scheduler.close(live.pop(rng.randrange(len(live))))
        run_step(scheduler)
    for _ in range(5000):
        if not scheduler.waiting:
            break
        run_step(scheduler)
    assert scheduler.waiting == 0
    for owner in live:
        scheduler.close(owner)
    assert scheduler.blocks.free_blocks == scheduler.blocks.num_blocks
