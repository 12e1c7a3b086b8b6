"""Promises of drafting: a chunk depends on the committed prefix alone, however the session got there."""

import dataclasses
import math
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from draft_service.drafter import Drafter, DraftSession
from speculative.engine.worker import Engine
from speculative.errors import CapacityError, StalePrefixError
from speculative.messages import Advance, Drafted, DraftOpen, StopReason
from speculative.sampling import distribution
from speculative.sampling.types import AcceptanceRule, SamplingParams
from tests.support.engines import RecordingRunner, running_engine, sessions_become

MODEL = "emulated:draft?eos_rate=0&context=300"
SAMPLED = SamplingParams(temperature=1.5)
GREEDY = SamplingParams(temperature=0)
PROMPT = (0, 5, 9)


@pytest.fixture
async def engine_and_runner() -> AsyncIterator[tuple[Engine, RecordingRunner]]:
    async with running_engine(MODEL) as both:
        yield both


@pytest.fixture
def engine(engine_and_runner: tuple[Engine, RecordingRunner]) -> Engine:
    return engine_and_runner[0]


@pytest.fixture
def runner(engine_and_runner: tuple[Engine, RecordingRunner]) -> RecordingRunner:
    return engine_and_runner[1]


def opening(prompt: tuple[int, ...] = PROMPT, params: SamplingParams = SAMPLED, **options: Any) -> DraftOpen:
    return DraftOpen(prompt, params, seed=options.pop("seed", 7), **options)


async def chunk(
    session: DraftSession,
    base_len: int,
    committed: tuple[int, ...] = (),
    max_tokens: int = 4,
    stop: float | None = None,
) -> Drafted:
    return await session.advance(Advance(base_len, committed, max_tokens, stop))


async def fresh(engine: Engine, prefix: tuple[int, ...], max_tokens: int, like: DraftOpen) -> Drafted:
    """The chunk that a session gives that was opened with the whole prefix."""
    reopened = dataclasses.replace(like, prompt_token_ids=prefix)
    async with Drafter(engine).session(reopened) as session:
        return await chunk(session, len(prefix), max_tokens=max_tokens)


def essence(drafted: Drafted) -> tuple[Any, ...]:
    """What must be equal; times are not."""
    return drafted.base_len, drafted.token_ids, drafted.entropies_nats, drafted.laws, drafted.stop_reason


async def test_a_chunk_has_the_asked_length_and_an_entropy_for_each_token(engine: Engine) -> None:
    async with Drafter(engine).session(opening()) as session:
        drafted = await chunk(session, 3, max_tokens=5)
    assert drafted.base_len == 3
    assert len(drafted.token_ids) == len(drafted.entropies_nats) == 5
    assert drafted.laws == ()
    assert drafted.stop_reason is StopReason.MAX_TOKENS
    assert drafted.drafted_ahead == 0
    assert drafted.draft_ns > 0


@pytest.mark.parametrize(
    "options",
    [{}, {"acceptance": AcceptanceRule.REJECTION}, {"distribution": True, "draft_probs": True}],
    ids=["coupled", "rejection", "coupled, with laws"],
)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
async def test_any_history_of_rounds_gives_the_chunk_of_the_committed_prefix(
    engine: Engine, params: SamplingParams, options: dict[str, Any]
) -> None:
    choices = random.Random(3)
    opened = opening(params=params, **options)
    async with Drafter(engine).session(opened) as session:
        prefix: tuple[int, ...] = PROMPT
        committed: tuple[int, ...] = ()
        while len(prefix) < 200:
            base_len = len(prefix) - len(committed)
            drafted = await chunk(session, base_len, committed, max_tokens=choices.randrange(7))
            assert essence(drafted) == essence(await fresh(engine, prefix, len(drafted.token_ids), opened))
            accepted = drafted.token_ids[: choices.randrange(len(drafted.token_ids) + 1)]
            others = choices.randrange(1, 4)  # more than one when rounds went by without this draft
            committed = (*accepted, *(choices.randrange(engine.info.vocab_size) for _ in range(others)))
            prefix += committed


async def test_a_session_that_shares_the_engine_drafts_the_same(engine: Engine) -> None:
    alone = await fresh(engine, PROMPT, 6, opening())
    async with Drafter(engine).session(opening((1, 2))) as other, Drafter(engine).session(opening()) as session:
        await chunk(other, 2)
        assert essence(await chunk(session, 3, max_tokens=6)) == essence(alone)


async def test_after_full_acceptance_only_the_last_drafted_and_the_bonus_token_are_fed(
    engine: Engine, runner: RecordingRunner
) -> None:
    async with Drafter(engine).session(opening()) as session:
        first = await chunk(session, 3, max_tokens=3)
        runner.forget()
        await chunk(session, 3, (*first.token_ids, 0), max_tokens=2)
    assert runner.fed == [2, 1]


@pytest.mark.parametrize("accepted_len", [0, 1, 2])
async def test_after_a_rejection_only_the_recovered_token_is_fed(
    engine: Engine, runner: RecordingRunner, accepted_len: int
) -> None:
    async with Drafter(engine).session(opening()) as session:
        first = await chunk(session, 3, max_tokens=3)
        recovered = (first.token_ids[accepted_len] + 1) % engine.info.vocab_size
        runner.forget()
        await chunk(session, 3, (*first.token_ids[:accepted_len], recovered), max_tokens=2)
    assert runner.fed == [1, 1]


async def test_the_prompt_is_processed_on_open(engine: Engine, runner: RecordingRunner) -> None:
    async with Drafter(engine).session(opening(tuple(range(100)))) as session:
        assert sum(runner.fed) == 100
        runner.forget()
        await chunk(session, 100, max_tokens=1)
    assert runner.fed == [1]


async def test_a_repeated_advance_gets_the_same_chunk(engine: Engine) -> None:
    async with Drafter(engine).session(opening()) as session:
        first = await chunk(session, 3)
        committed = (*first.token_ids[:2], 0)
        second = await chunk(session, 3, committed)
        assert essence(await chunk(session, 3, committed)) == essence(second)
        assert essence(await chunk(session, 6)) == essence(second)


@pytest.mark.parametrize("base_len", [0, 2, 4, 7, 100])
async def test_an_advance_that_assumes_another_length_is_stale(engine: Engine, base_len: int) -> None:
    async with Drafter(engine).session(opening()) as session:
        await chunk(session, 3, (0, 1, 2))
        with pytest.raises(StalePrefixError) as error:
            await chunk(session, base_len, (5,))
    assert (error.value.assumed_len, error.value.true_len) == (base_len, 6)


async def test_tokens_that_differ_from_the_committed_ones_are_stale_and_not_a_repetition(engine: Engine) -> None:
    async with Drafter(engine).session(opening()) as session:
        await chunk(session, 3, (0, 1))
        with pytest.raises(StalePrefixError):
            await chunk(session, 3, (0, 2))


async def test_a_chunk_of_zero_commits_all_the_same(engine: Engine) -> None:
    async with Drafter(engine).session(opening()) as session:
        assert (await chunk(session, 3, (0, 1), max_tokens=0)).token_ids == ()
        drafted = await chunk(session, 5)
    assert essence(drafted) == essence(await fresh(engine, (*PROMPT, 0, 1), 4, opening()))


async def test_drafting_stops_behind_the_first_token_of_too_much_entropy(engine: Engine) -> None:
    whole = await fresh(engine, PROMPT, 8, opening())
    threshold = sorted(whole.entropies_nats)[-2]  # all but the greatest are allowed
    expected_len = whole.entropies_nats.index(max(whole.entropies_nats)) + 1
    async with Drafter(engine).session(opening()) as session:
        drafted = await chunk(session, 3, max_tokens=8, stop=threshold)
    assert drafted.token_ids == whole.token_ids[:expected_len]
    assert drafted.stop_reason is StopReason.ENTROPY
    assert drafted.entropies_nats[-1] > threshold >= max(drafted.entropies_nats[:-1], default=0)


async def test_an_entropy_equal_to_the_threshold_does_not_stop(engine: Engine) -> None:
    whole = await fresh(engine, PROMPT, 8, opening())
    async with Drafter(engine).session(opening()) as session:
        drafted = await chunk(session, 3, max_tokens=8, stop=max(whole.entropies_nats))
    assert drafted.token_ids == whole.token_ids


@pytest.mark.parametrize("params", [SAMPLED, GREEDY])
@pytest.mark.parametrize("acceptance", [AcceptanceRule.COUPLED, AcceptanceRule.REJECTION])
async def test_drafting_stops_behind_the_first_token_of_too_little_probability(
    engine: Engine, acceptance: AcceptanceRule, params: SamplingParams
) -> None:
    opened = opening(params=params, acceptance=acceptance, draft_probs=True)
    whole = await fresh(engine, PROMPT, 8, opened)
    least = min(whole.draft_probs)
    expected_len = whole.draft_probs.index(least) + 1
    for stop_prob, length, reason in (
        (least * 1.0001, expected_len, StopReason.PROBABILITY),
        (least, 8, StopReason.MAX_TOKENS),
    ):
        async with Drafter(engine).session(opened) as session:
            drafted = await session.advance(Advance(3, (), 8, stop_prob=stop_prob))
        assert drafted.token_ids == whole.token_ids[:length]
        assert drafted.draft_probs == whole.draft_probs[:length]
        assert drafted.stop_reason is reason


@pytest.mark.parametrize("position", [1, 4, 7])
async def test_drafting_stops_behind_the_first_token_of_too_little_survival(engine: Engine, position: int) -> None:
    whole = await fresh(engine, PROMPT, 8, opening(draft_probs=True))
    survival = [math.prod(whole.draft_probs[: index + 1]) for index in range(8)]
    async with Drafter(engine).session(opening()) as session:
        threshold = (survival[position] + survival[position - 1]) / 2
        drafted = await session.advance(Advance(3, (), 8, stop_survival=threshold))
    assert drafted.token_ids == whole.token_ids[: position + 1]
    assert drafted.draft_probs == whole.draft_probs[: position + 1]  # a rule that looks at them has them sent
    assert drafted.stop_reason is StopReason.SURVIVAL


async def test_what_is_told_of_tokens_never_changes_them(engine: Engine) -> None:
    for params in (SAMPLED, GREEDY):
        plain = await fresh(engine, PROMPT, 8, opening(params=params))
        told = await fresh(engine, PROMPT, 8, opening(params=params, distribution=True, draft_probs=True))
        assert (told.token_ids, told.entropies_nats) == (plain.token_ids, plain.entropies_nats)
        assert not plain.laws
        assert not plain.draft_probs
        assert len(told.laws) == len(told.draft_probs) == 8
        for law, token_id, prob in zip(told.laws, told.token_ids, told.draft_probs, strict=True):
            assert distribution.full_probability(law, token_id) == pytest.approx(prob, abs=1e-3)


async def test_drafting_stops_behind_the_end_of_the_sequence() -> None:
    async with (
        running_engine("emulated:draft?eos_rate=1") as (engine, _),
        Drafter(engine).session(opening(params=GREEDY)) as session,
    ):
        drafted = await chunk(session, 3, max_tokens=8)
    assert drafted.token_ids[-1] in engine.info.eos_token_ids
    assert not set(drafted.token_ids[:-1]) & set(engine.info.eos_token_ids)
    assert drafted.stop_reason is StopReason.END_OF_SEQUENCE


async def test_a_chunk_is_cut_at_the_edge_of_the_context() -> None:
    async with (
        running_engine("emulated:draft?eos_rate=0&context=8") as (engine, _),
        Drafter(engine).session(opening()) as session,
    ):
        drafted = await chunk(session, 3, max_tokens=8)
        assert len(drafted.token_ids) == 5
        assert drafted.stop_reason is StopReason.CONTEXT
        rejected = await chunk(session, 3, (*drafted.token_ids[:2], 0), max_tokens=2)
        assert len(rejected.token_ids) == 2
        assert rejected.stop_reason is StopReason.MAX_TOKENS


async def test_a_prefix_as_long_as_the_context_is_counted_and_answered_with_nothing() -> None:
    async with (
        running_engine("emulated:draft?eos_rate=0&context=8") as (engine, _),
        Drafter(engine).session(opening()) as session,
    ):
        for base_len, committed in ((3, (0,) * 5), (3, (0,) * 5), (8, (1, 2)), (10, ())):
            drafted = await chunk(session, base_len, committed)
            assert drafted.token_ids == ()
            assert drafted.base_len == base_len + len(committed)
            assert drafted.stop_reason is StopReason.CONTEXT
        assert engine.stats().sessions == 0
        with pytest.raises(StalePrefixError):
            await chunk(session, 9)


@pytest.mark.parametrize("length", [7, 8, 9, 100])
async def test_a_prompt_at_the_edge_of_the_drafts_context_is_no_error(length: int) -> None:
    async with (
        running_engine("emulated:draft?eos_rate=0&context=8") as (engine, _),
        Drafter(engine).session(opening((0,) * length)) as session,
    ):
        drafted = await chunk(session, length)
    assert len(drafted.token_ids) == max(8 - length, 0)
    assert drafted.stop_reason is StopReason.CONTEXT


async def test_laws_come_with_their_tokens_when_asked_for(engine: Engine) -> None:
    async with Drafter(engine).session(opening(acceptance=AcceptanceRule.REJECTION)) as session:
        drafted = await chunk(session, 3, max_tokens=5)
    assert len(drafted.laws) == len(drafted.token_ids) == 5
    for token_id, law in zip(drafted.token_ids, drafted.laws, strict=True):
        assert dict(zip(law.token_ids, law.weights, strict=True))[token_id] > 0


async def test_a_session_frees_everything_when_its_block_ends(engine: Engine) -> None:
    async def session_that_fails() -> None:
        async with Drafter(engine).session(opening()) as session:
            await chunk(session, 3)
            await chunk(session, 99)

    with pytest.raises(StalePrefixError):
        await session_that_fails()
    assert engine.stats().sessions == 0
    await sessions_become(engine, 0)


async def test_one_session_too_many_is_refused_and_a_place_that_is_given_back_is_free() -> None:
    async with running_engine(MODEL, max_sessions=1) as (engine, _):
        async with Drafter(engine).session(opening()):
            with pytest.raises(CapacityError):
                async with Drafter(engine).session(opening()):
                    pass
        async with Drafter(engine).session(opening()) as session:
            assert (await chunk(session, 3)).token_ids


async def test_a_failed_step_ends_the_session_and_no_other(engine: Engine, runner: RecordingRunner) -> None:
    async with Drafter(engine).session(opening()) as survivor:
        async with Drafter(engine).session(opening()) as session:
            runner.failure = ZeroDivisionError("kernel")
            with pytest.raises(ZeroDivisionError):
                await chunk(session, 3)
        runner.failure = None
        assert essence(await chunk(survivor, 3)) == essence(await fresh(engine, PROMPT, 4, opening()))


async def test_warming_up_leaves_nothing_behind(engine: Engine, runner: RecordingRunner) -> None:
    await Drafter(engine).warm_up()
    assert sum(runner.fed) > 0
    assert engine.stats().sessions == 0
