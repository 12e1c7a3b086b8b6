"""Promises of verification: what is committed is the target's own output, whatever the draft proposes."""

import random
from collections.abc import AsyncIterator, Iterable

import pytest

from draft_service.drafter import Drafter
from speculative.engine.worker import Engine
from speculative.errors import CapacityError, ContextLengthError, InvalidRequestError, StalePrefixError
from speculative.messages import Advance, Check, DraftOpen, Verdict, VerifyOpen
from speculative.sampling.types import NO_SIGNALS, AcceptanceRule, SamplingParams, Signal, SparseLaw
from tests.support.engines import RecordingRunner, running_engine, sessions_become
from verifier_service.verifier import Verifier

MODEL = "emulated:target?eos_rate=0&context=300"
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


def opening(
    prompt: tuple[int, ...] = PROMPT,
    params: SamplingParams = SAMPLED,
    acceptance: AcceptanceRule = AcceptanceRule.COUPLED,
    signals: Iterable[Signal] = (),
) -> VerifyOpen:
    return VerifyOpen(prompt, params, seed=7, acceptance=acceptance, wanted_signals=frozenset(signals))


async def target_alone(engine: Engine, count: int, params: SamplingParams = SAMPLED) -> tuple[int, ...]:
    """What the target generates by plain steps."""
    tokens: tuple[int, ...] = ()
    async with Verifier(engine, {}).session(opening(params=params)) as session:
        for _ in range(count):
            verdict = await session.check(Check(len(PROMPT) + len(tokens), ()))
            assert verdict.accepted_len == 0
            tokens += (verdict.next_token_id,)
    return tokens


def committed(check: Check, verdict: Verdict) -> tuple[int, ...]:
    return (*check.draft_token_ids[: verdict.accepted_len], verdict.next_token_id)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
async def test_any_draft_gives_the_targets_own_output(engine: Engine, params: SamplingParams, right: float) -> None:
    choices = random.Random(5)
    expected = await target_alone(engine, 120, params)
    tokens: tuple[int, ...] = ()
    async with Verifier(engine, {}).session(opening(params=params)) as session:
        while len(tokens) < 100:
            true = expected[len(tokens) : len(tokens) + choices.randrange(9)]
            draft = tuple(one if choices.random() < right else choices.randrange(100) for one in true)
            check = Check(len(PROMPT) + len(tokens), draft)
            verdict = await session.check(check)
            agreeing = next(
                (i for i, (one, other) in enumerate(zip(draft, true, strict=True)) if one != other), len(true)
            )
            assert verdict.accepted_len == agreeing
            tokens += committed(check, verdict)
    assert tokens == expected[: len(tokens)]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
async def test_a_draft_equal_to_the_target_is_always_accepted(engine: Engine, params: SamplingParams) -> None:
    drafting = DraftOpen(PROMPT, params, seed=7)
    async with (
        Verifier(engine, {}).session(opening(params=params)) as session,
        Drafter(engine).session(drafting) as draft,
    ):
        base_len = 3
        newest: tuple[int, ...] = ()
        for _ in range(20):
            drafted = await draft.advance(Advance(base_len - len(newest), newest, 8))
            check = Check(base_len, drafted.token_ids)
            verdict = await session.check(check)
            assert verdict.accepted_len == 8
            newest = committed(check, verdict)
            base_len += len(newest)


async def test_a_draft_equal_to_the_target_is_always_accepted_by_rejection_too(engine: Engine) -> None:
    drafting = DraftOpen(PROMPT, SAMPLED, seed=7, acceptance=AcceptanceRule.REJECTION)
    opened = opening(acceptance=AcceptanceRule.REJECTION)
    async with Verifier(engine, {}).session(opened) as session, Drafter(engine).session(drafting) as draft:
        base_len, accepted = 3, 0
        newest: tuple[int, ...] = ()
        for _ in range(20):
            drafted = await draft.advance(Advance(base_len - len(newest), newest, 8))
            check = Check(base_len, drafted.token_ids, drafted.laws)
            verdict = await session.check(check)
            accepted += verdict.accepted_len
            newest = committed(check, verdict)
            base_len += len(newest)
    assert accepted >= 150  # of 160; the law sent is rounded to fp16, so the ratio may fall just short of 1


async def test_a_law_the_target_excludes_is_rejected(engine: Engine) -> None:
    (own,) = await target_alone(engine, 1, GREEDY)
    other = (own + 1) % engine.info.vocab_size
    async with Verifier(engine, {}).session(opening(params=GREEDY, acceptance=AcceptanceRule.REJECTION)) as session:
        verdict = await session.check(Check(3, (other,), (SparseLaw((other,), (1.0,)),)))
    assert (verdict.accepted_len, verdict.next_token_id) == (0, own)


async def test_token_zero_is_a_token(engine: Engine) -> None:
    async with Verifier(engine, {}).session(opening((0,), GREEDY)) as session:
        verdict = await session.check(Check(1, (0, 0)))
        after = await session.check(Check(2 + verdict.accepted_len, ()))
    assert after.base_len == 2 + verdict.accepted_len


async def test_a_round_feeds_the_last_committed_token_and_the_chunk(engine: Engine, runner: RecordingRunner) -> None:
    expected = await target_alone(engine, 8)
    async with Verifier(engine, {}).session(opening()) as session:
        runner.forget()
        await session.check(Check(3, expected[:4]))
        await session.check(Check(8, (*expected[5:6], 99, 98)))
        await session.check(Check(10, ()))
    assert runner.fed == [5, 4, 1]


async def test_the_prompt_is_processed_on_open(engine: Engine, runner: RecordingRunner) -> None:
    async with Verifier(engine, {}).session(opening(tuple(range(100)))) as session:
        assert sum(runner.fed) == 100
        runner.forget()
        await session.check(Check(100, (1, 2)))
    assert runner.fed == [3]


async def test_the_last_check_repeated_gets_the_same_verdict_and_costs_nothing(
    engine: Engine, runner: RecordingRunner
) -> None:
    check = Check(3, (1, 2))
    async with Verifier(engine, {}).session(opening()) as session:
        verdict = await session.check(check)
        runner.forget()
        assert await session.check(check) == verdict
        assert runner.fed == []
        following = await session.check(Check(3 + len(committed(check, verdict)), ()))
    assert (*committed(check, verdict), following.next_token_id) == await target_alone(engine, verdict.accepted_len + 2)


@pytest.mark.parametrize("offset", [-3, -1, 1, 100])
async def test_a_check_that_assumes_another_length_is_stale(engine: Engine, offset: int) -> None:
    async with Verifier(engine, {}).session(opening()) as session:
        true_len = 4 + (await session.check(Check(3, (1, 2)))).accepted_len
        with pytest.raises(StalePrefixError) as error:
            await session.check(Check(true_len + offset, ()))
    assert (error.value.assumed_len, error.value.true_len) == (true_len + offset, true_len)


async def test_another_chunk_at_an_answered_length_is_stale_and_not_a_repetition(engine: Engine) -> None:
    async with Verifier(engine, {}).session(opening()) as session:
        await session.check(Check(3, (1, 2)))
        with pytest.raises(StalePrefixError):
            await session.check(Check(3, (1,)))


CONTEXT = 8


@pytest.fixture
async def narrow() -> AsyncIterator[tuple[Engine, RecordingRunner]]:
    async with running_engine(f"emulated:target?eos_rate=0&context={CONTEXT}") as both:
        yield both


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 1, 1000])
async def test_a_prompt_without_room_for_an_answer_is_refused_before_any_work(
    narrow: tuple[Engine, RecordingRunner], length: int
) -> None:
    engine, runner = narrow
    with pytest.raises(ContextLengthError) as error:
        async with Verifier(engine, {}).session(opening((0,) * length)):
            pass
    assert (error.value.needed_len, error.value.context_len) == (length + 1, CONTEXT)
    assert runner.fed == []
    assert engine.stats().sessions == 0


async def test_a_prompt_one_token_short_of_the_window_gets_exactly_one(narrow: tuple[Engine, RecordingRunner]) -> None:
    engine, runner = narrow
    async with Verifier(engine, {}).session(opening((0,) * (CONTEXT - 1))) as session:
        await session.check(Check(CONTEXT - 1, ()))
        runner.forget()
        with pytest.raises(ContextLengthError):
            await session.check(Check(CONTEXT, ()))
    assert runner.fed == []


@pytest.mark.parametrize("length", range(1, CONTEXT))
async def test_a_chunk_may_fill_the_room_left_and_no_more(narrow: tuple[Engine, RecordingRunner], length: int) -> None:
    engine, runner = narrow
    room = CONTEXT - length - 1
    async with Verifier(engine, {}).session(opening((0,) * length)) as session:
        runner.forget()
        with pytest.raises(ContextLengthError) as error:
            await session.check(Check(length, (0,) * (room + 1)))
        assert error.value.needed_len == CONTEXT + 1
        assert runner.fed == []
        await session.check(Check(length, (0,) * room))


@pytest.mark.parametrize("laws", [(), (SparseLaw((1,), (1.0,)),)])
async def test_rejection_needs_every_law(engine: Engine, laws: tuple[SparseLaw, ...]) -> None:
    async with Verifier(engine, {}).session(opening(acceptance=AcceptanceRule.REJECTION)) as session:
        with pytest.raises(InvalidRequestError) as error:
            await session.check(Check(3, (1, 1), laws))
    assert error.value.field == "check.distributions"


LAW_OF_1 = SparseLaw((1, 2), (1.0, 0.5))


@pytest.mark.parametrize("rule", [AcceptanceRule.REJECTION, AcceptanceRule.ADASD])
@pytest.mark.parametrize("law", [SparseLaw((2,), (1.0,)), SparseLaw((2, 1), (1.0, 0.0))])
async def test_a_law_that_cannot_have_produced_its_token_is_refused_where_it_judges(
    engine: Engine, rule: AcceptanceRule, law: SparseLaw
) -> None:
    async with Verifier(engine, {}).session(opening(acceptance=rule)) as session:
        with pytest.raises(InvalidRequestError) as error:
            await session.check(Check(3, (1, 1), (LAW_OF_1, law)))
    assert error.value.field == "check.distributions[1]"


@pytest.mark.parametrize("signal", [Signal.KL, Signal.JS_DISTANCE])
async def test_divergences_need_every_law_and_may_miss_the_token(engine: Engine, signal: Signal) -> None:
    async with Verifier(engine, {}).session(opening(signals={signal})) as session:
        with pytest.raises(InvalidRequestError) as error:
            await session.check(Check(3, (1, 1), (LAW_OF_1,)))
        verdict = await session.check(Check(3, (1, 3), (LAW_OF_1, LAW_OF_1)))
        plain = await session.check(Check(verdict.base_len + verdict.accepted_len + 1, ()))
    assert error.value.field == "check.distributions"
    signals = verdict.signals.kl_nats if signal is Signal.KL else verdict.signals.js_distance
    assert len(signals) == 2
    assert plain.signals == NO_SIGNALS


async def test_signals_come_only_when_wanted(engine: Engine) -> None:
    async with Verifier(engine, {}).session(opening()) as session:
        assert (await session.check(Check(3, (1,), (LAW_OF_1,)))).signals == NO_SIGNALS
    async with Verifier(engine, {}).session(opening(signals={Signal.TARGET_ENTROPY})) as session:
        signals = (await session.check(Check(3, (1, 2)))).signals
    assert len(signals.target_entropies_nats) == 2
    assert signals.kl_nats == signals.js_distance == ()


async def test_rejection_without_a_draft_is_a_plain_step(engine: Engine) -> None:
    async with Verifier(engine, {}).session(opening(acceptance=AcceptanceRule.REJECTION)) as session:
        verdict = await session.check(Check(3, ()))
    assert verdict.accepted_len == 0


async def test_a_verdict_tells_what_the_round_cost(engine: Engine) -> None:
    async with Verifier(engine, {}).session(opening()) as session:
        verdict = await session.check(Check(3, (1,)))
    assert verdict.base_len == 3
    assert verdict.forward_ns > 0
    assert verdict.queue_ns >= 0
    assert verdict.batch_size == 1
    assert verdict.queue_len == 0


async def test_a_session_frees_everything_when_its_block_ends(engine: Engine) -> None:
    async def session_that_fails() -> None:
        async with Verifier(engine, {}).session(opening()) as session:
            await session.check(Check(3, (1, 2)))
            await session.check(Check(99, ()))

    with pytest.raises(StalePrefixError):
        await session_that_fails()
    assert engine.stats().sessions == 0
    await sessions_become(engine, 0)


async def test_one_session_too_many_is_refused() -> None:
    async with running_engine(MODEL, max_sessions=1) as (engine, _), Verifier(engine, {}).session(opening()):
        with pytest.raises(CapacityError):
            async with Verifier(engine, {}).session(opening()):
                pass


async def test_warming_up_leaves_nothing_behind(engine: Engine, runner: RecordingRunner) -> None:
    await Verifier(engine, {}).warm_up()
    assert sum(runner.fed) > 0
    assert engine.stats().sessions == 0
