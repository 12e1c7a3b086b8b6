"""Promises of prompt lookup in the draft service: in front of the model, and without one."""

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest

from draft_service.drafter import Drafter
from draft_service.lookup_drafter import LookupDrafter
from speculative.engine.worker import Engine
from speculative.errors import CapacityError, StalePrefixError
from speculative.messages import Advance, Drafted, DraftOpen, StopReason
from speculative.sampling import distribution
from speculative.sampling.types import AcceptanceRule, SamplingParams
from tests.support.engines import RecordingRunner, running_engine

SAMPLED = SamplingParams(temperature=1.5)
PASSAGE = tuple(range(10, 40))
COPYING = (1, 2, *PASSAGE, 3, 4, *PASSAGE[:3])
"""A prompt that has begun to repeat its passage."""
NEW = (1, 2, *PASSAGE)
"""A prompt in which nothing recurs."""
SHORT = (50, 60, 70, 80, 50, 60)
"""A prompt whose match is four tokens before its end."""


@pytest.fixture
async def engine_and_runner() -> AsyncIterator[tuple[Engine, RecordingRunner]]:
    async with running_engine("emulated:draft?eos_rate=0&context=300") as both:
        yield both


@pytest.fixture
def engine(engine_and_runner: tuple[Engine, RecordingRunner]) -> Engine:
    return engine_and_runner[0]


@pytest.fixture
def runner(engine_and_runner: tuple[Engine, RecordingRunner]) -> RecordingRunner:
    return engine_and_runner[1]


def opening(prompt: tuple[int, ...], *, lookup: bool = True, **options: Any) -> DraftOpen:
    return DraftOpen(prompt, SAMPLED, seed=7, lookup=lookup, **options)


async def fresh(drafter: Drafter | LookupDrafter, opened: DraftOpen, advance: Advance) -> Drafted:
    """The first chunk of a session of its own."""
    async with drafter.session(opened) as session:
        return dataclasses.replace(await session.advance(advance), draft_ns=0)


async def test_a_passage_that_is_repeated_is_looked_up_without_a_step_of_the_engine(
    engine: Engine, runner: RecordingRunner
) -> None:
    async with Drafter(engine).session(opening(COPYING)) as session:
        runner.forget()
        drafted = await session.advance(Advance(len(COPYING), (), 12))
    assert drafted.token_ids == PASSAGE[3:15]
    assert drafted.looked_up == 12
    assert drafted.entropies_nats == (0.0,) * 12
    assert drafted.stop_reason is StopReason.MAX_TOKENS
    assert runner.fed == []


@pytest.mark.parametrize("prompt", [NEW, COPYING])
async def test_where_nothing_matches_or_nothing_is_to_be_looked_up_the_model_drafts_as_ever(
    engine: Engine, runner: RecordingRunner, prompt: tuple[int, ...]
) -> None:
    plain = await fresh(Drafter(engine), opening(prompt, lookup=False), Advance(len(prompt), (), 4))
    fed = list(runner.fed)
    runner.forget()
    most = None if prompt == NEW else 0
    looking = await fresh(Drafter(engine), opening(prompt), Advance(len(prompt), (), 4, max_lookup_tokens=most))
    assert looking == plain
    assert runner.fed == fed


async def test_the_model_drafts_behind_a_short_proposal_and_catches_up_in_its_first_step(
    engine: Engine, runner: RecordingRunner
) -> None:
    drafter = Drafter(engine, lookup_alone_tokens=5)
    async with drafter.session(opening(SHORT)) as session:
        runner.forget()
        drafted = await session.advance(Advance(6, (), 7))
    assert drafted.token_ids[:4] == (70, 80, 50, 60)
    assert drafted.looked_up == 4
    assert len(drafted.token_ids) == len(drafted.entropies_nats) == 7
    assert runner.fed == [5, 1, 1]
    behind = await fresh(drafter, opening((*SHORT, *drafted.token_ids[:4]), lookup=False), Advance(10, (), 3))
    assert drafted.token_ids[4:] == behind.token_ids


async def test_a_proposal_that_is_long_enough_stands_alone(engine: Engine, runner: RecordingRunner) -> None:
    async with Drafter(engine, lookup_alone_tokens=4).session(opening(SHORT)) as session:
        runner.forget()
        assert (await session.advance(Advance(6, (), 7))).token_ids == (70, 80, 50, 60)
    assert runner.fed == []


@pytest.mark.parametrize("acceptance", list(AcceptanceRule))
async def test_the_law_of_a_looked_up_token_is_one_hot(engine: Engine, acceptance: AcceptanceRule) -> None:
    opened = opening(SHORT, acceptance=acceptance, distribution=True, draft_probs=True)
    for drafter, length in ((Drafter(engine, lookup_alone_tokens=9), 6), (LookupDrafter(1), 4)):
        drafted = await fresh(drafter, opened, Advance(6, (), 6))
        assert len(drafted.laws) == len(drafted.draft_probs) == len(drafted.token_ids) == length
        assert drafted.laws[:4] == tuple(map(distribution.one_hot, drafted.token_ids[:4]))
        assert drafted.draft_probs[:4] == (1.0,) * 4


async def test_looked_up_tokens_fire_no_stop_rule(engine: Engine) -> None:
    strict = Advance(len(COPYING), (), 8, stop_entropy_nats=0.0, stop_prob=1.0, stop_survival=1.0)
    assert (await fresh(Drafter(engine), opening(COPYING), strict)).token_ids == PASSAGE[3:11]


@pytest.mark.parametrize(("max_tokens", "most"), [(2, 9), (9, 5), (0, 7)])
async def test_as_many_tokens_are_looked_up_as_the_advance_says(engine: Engine, max_tokens: int, most: int) -> None:
    advance = Advance(len(COPYING), (), max_tokens, max_lookup_tokens=most)
    for drafter in (Drafter(engine), LookupDrafter(1)):
        assert (await fresh(drafter, opening(COPYING), advance)).token_ids == PASSAGE[3 : 3 + most]


@pytest.mark.parametrize("accepted_len", [0, 2, 4, 5, 6])
async def test_after_any_verdict_the_chunk_is_that_of_the_committed_prefix(engine: Engine, accepted_len: int) -> None:
    for drafter in (Drafter(engine, lookup_alone_tokens=9), LookupDrafter(2)):
        async with drafter.session(opening(SHORT)) as session:
            first = await session.advance(Advance(6, (), 6))
            committed = (*first.token_ids[:accepted_len], 99)
            second = await session.advance(Advance(6, committed, 6))
            repeated = await session.advance(Advance(6, committed, 6))
            with pytest.raises(StalePrefixError):
                await session.advance(Advance(6, (*committed[:-1], 98), 6))
            with pytest.raises(StalePrefixError):
                await session.advance(Advance(5, (), 6))
        prefix = (*SHORT, *committed)
        expected = await fresh(drafter, opening(prefix), Advance(len(prefix), (), 6))
        assert dataclasses.replace(second, draft_ns=0) == dataclasses.replace(repeated, draft_ns=0) == expected


async def test_after_many_looked_up_chunks_the_model_drafts_what_it_would_have_from_the_start(engine: Engine) -> None:
    async with Drafter(engine).session(opening(COPYING)) as session:
        prefix: tuple[int, ...] = COPYING
        committed: tuple[int, ...] = ()
        for _ in range(4):
            base_len = len(prefix) - len(committed)
            drafted = await session.advance(Advance(base_len, committed, 6))
            assert drafted.looked_up == 6
            committed = drafted.token_ids
            prefix += committed
        prefix += (200,)
        last = await session.advance(Advance(len(prefix) - 7, (*committed, 200), 4))
    assert last.looked_up == 0
    assert last.token_ids == (await fresh(Drafter(engine), opening(prefix), Advance(len(prefix), (), 4))).token_ids


async def test_a_looked_up_end_of_the_sequence_ends_the_chunk() -> None:
    async with running_engine("emulated:draft?eos_rate=0") as (engine, _):
        eos = engine.info.eos_token_ids[0]
        prompt = (5, 6, 7, eos, 8, 9, 5, 6)
        drafted = await fresh(Drafter(engine), opening(prompt), Advance(8, (), 6))
    assert drafted.token_ids == (7, eos)
    assert drafted.stop_reason is StopReason.END_OF_SEQUENCE


async def test_looked_up_tokens_are_cut_at_the_edge_of_the_models_context() -> None:
    async with running_engine("emulated:draft?eos_rate=0&context=40") as (engine, _):
        drafted = await fresh(Drafter(engine), opening(COPYING), Advance(len(COPYING), (), 6))
    assert drafted.token_ids == PASSAGE[3:6]
    assert drafted.stop_reason is StopReason.CONTEXT


async def test_without_a_model_nothing_is_proposed_where_nothing_matches_or_the_session_does_not_look_up() -> None:
    drafter = LookupDrafter(1)
    for opened in (opening(NEW), opening(COPYING, lookup=False)):
        base_len = len(opened.prompt_token_ids)
        drafted = await fresh(drafter, opened, Advance(base_len, (), 6))
        assert (drafted.token_ids, drafted.stop_reason) == ((), StopReason.NO_MATCH)


async def test_without_a_model_one_session_too_many_is_refused_and_a_place_given_back_is_free() -> None:
    drafter = LookupDrafter(1)
    async with drafter.session(opening(NEW)):
        with pytest.raises(CapacityError):
            async with drafter.session(opening(NEW)):
                pass
    async with drafter.session(opening(NEW)):
        pass
