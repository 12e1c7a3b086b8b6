"""The loop of one request, driven by a scripted draft and verifier."""

import asyncio
import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from controller.answer import StopRules
from controller.decoder import Decoder, DecodeTask
from controller.drafting import DraftPatience
from controller.text import Detokenizer
from controller.tokenizer import Tokenizer
from controller.transport import Deadline
from speculative.errors import CapacityError, NotReadyError, RemoteError
from speculative.generation import Delta, Finished, FinishReason, TokenOrigin
from speculative.messages import Advance, Drafted, StopReason
from speculative.sampling.types import (
    PAPERS_ADASD,
    AcceptanceRule,
    AdasdOptions,
    AdasdVariant,
    SamplingParams,
    Signal,
)
from tests.controller import small_tokenizers
from tests.controller.fakes import DRAFT_INFO, INFO, LIMITS, FakeDraft, FakePolicy, FakeVerifier, Law, script

TOKENIZER = Tokenizer(small_tokenizers.files(small_tokenizers.byte_level()))
PROMPT = (1, 2, 3)
EOS_ID = INFO.eos_token_ids[0]
TEXT = "The quick brown fox: 你好 😀 stop it."
TOKENS = TOKENIZER.encode(TEXT, add_special_tokens=False)
TARGET = script(len(PROMPT), [*TOKENS, EOS_ID])
PATIENCE = DraftPatience(first_chunk_s=0.05, chunk_floor_s=0.05, chunk_ceiling_s=0.05, warm_up_s=0.05, retry_s=0.01)


def garbage(position: int) -> int:
    return (position * 7919) % 300


def every_third_wrong(position: int) -> int:
    return garbage(position) if position % 3 == 0 else TARGET(position)


DRAFTS: dict[str, Law] = {"same": TARGET, "garbage": garbage, "partly agreeing": every_third_wrong}


@dataclass
class Outcome:
    """What a client got."""

    finished: Finished
    deltas: list[Delta]

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self) -> list[int]:
        return [token_id for delta in self.deltas for token_id in delta.token_ids]


@dataclass
class Setting:
    """A request and the services it meets."""

    verifier: FakeVerifier = field(default_factory=lambda: FakeVerifier(TARGET))
    draft: FakeDraft = field(default_factory=lambda: FakeDraft(TARGET))
    policy: FakePolicy = field(default_factory=lambda: FakePolicy(4))
    max_tokens: int = 200
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    max_draft_tokens: int = 16
    acceptance: AcceptanceRule = AcceptanceRule.COUPLED
    adasd: AdasdOptions = PAPERS_ADASD
    round_trace: bool = False
    round_signals: bool = False
    patience: DraftPatience = PATIENCE

    def decoder(self) -> Decoder:
        rules = StopRules(self.max_tokens, frozenset({EOS_ID, *self.stop_ids}), self.stop)
        task = DecodeTask(
            prompt_token_ids=PROMPT,
            sampling=SamplingParams(temperature=0.5),
            seed=11,
            acceptance=self.acceptance,
            rules=rules,
            max_draft_tokens=self.max_draft_tokens,
            round_trace=self.round_trace,
            round_signals=self.round_signals,
            adasd=self.adasd,
        )
        return Decoder(
            task,
            self.policy,
            self.verifier,
            self.draft,
            Detokenizer(TOKENIZER, continues_text=True),
            self.patience,
            Deadline(time.monotonic_ns, time.monotonic_ns() + 10**10),
            time.monotonic_ns,
        )

    async def run(self) -> Outcome:
        deltas: list[Delta] = []

        async def deliver(delta: Delta) -> None:
            deltas.append(delta)

        finished = await self.decoder().run(deliver)
        assert all(stream.closed for stream in self.verifier.streams)
        assert all(stream.closed for stream in self.draft.streams)
        check_accounts(finished, deltas)
        return Outcome(finished, deltas)


def check_accounts(finished: Finished, deltas: Sequence[Delta]) -> None:
    """delivered = accepted + recovered + bonus; counters are of delivered tokens only."""
    origins = [origin for delta in deltas for origin in delta.token_origins]
    statistics = finished.statistics
    assert finished.usage.prompt_tokens == len(PROMPT)
    assert finished.usage.completion_tokens == len(origins)
    assert statistics.accepted == origins.count(TokenOrigin.ACCEPTED)
    assert statistics.recovered == origins.count(TokenOrigin.RECOVERED)
    assert statistics.bonus == origins.count(TokenOrigin.BONUS)
    assert statistics.accepted + statistics.recovered + statistics.bonus == len(origins)
    assert sum(statistics.accepted_histogram) == statistics.rounds
    accepted = sum(length * count for length, count in enumerate(statistics.accepted_histogram))
    assert statistics.accepted <= accepted <= statistics.drafted
    assert (statistics.first_token_ns > 0) == bool(origins)
    assert statistics.total_ns >= statistics.first_token_ns
    assert statistics.total_ns >= statistics.draft_wait_ns + statistics.verify_wait_ns


@pytest.mark.parametrize("chunk", range(9))
@pytest.mark.parametrize("draft", DRAFTS)
async def test_the_output_is_the_targets_whatever_the_draft_and_the_chunk(chunk: int, draft: str) -> None:
    outcome = await Setting(draft=FakeDraft(DRAFTS[draft]), policy=FakePolicy(chunk)).run()
    assert outcome.token_ids == TOKENS
    assert outcome.text == TEXT
    assert outcome.finished.reason is FinishReason.STOP
    assert outcome.finished.matched_token_id == EOS_ID


@pytest.mark.parametrize("chunk", range(9))
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("end", range(1, 11))
async def test_every_stop_at_every_place_of_a_chunk_cuts_there(chunk: int, draft: str, end: int) -> None:
    def setting() -> Setting:
        return Setting(draft=FakeDraft(DRAFTS[draft]), policy=FakePolicy(chunk))

    by_length = await dataclasses.replace(setting(), max_tokens=end).run()
    assert by_length.token_ids == TOKENS[:end]
    assert by_length.finished.reason is FinishReason.LENGTH

    by_id = await dataclasses.replace(setting(), stop_ids=(TOKENS[end],)).run()
    assert by_id.token_ids == TOKENS[: TOKENS.index(TOKENS[end])]
    assert by_id.finished.matched_token_id == TOKENS[end]

    stop = TEXT[end : end + 3]
    by_string = await dataclasses.replace(setting(), stop=(stop,)).run()
    assert by_string.text == TEXT[: TEXT.index(stop)]
    assert by_string.finished.reason is FinishReason.STOP
    assert by_string.finished.matched_stop == stop
    assert TOKENIZER.decode(by_string.token_ids).startswith(by_string.text)
    assert len(TOKENIZER.decode(by_string.token_ids[:-1])) <= len(by_string.text)


async def test_nothing_behind_a_stop_is_delivered_or_counted() -> None:
    setting = Setting(policy=FakePolicy(6), max_tokens=5, stop_ids=(TOKENS[3],))
    outcome = await setting.run()
    assert outcome.token_ids == TOKENS[:3]
    assert outcome.finished.reason is FinishReason.STOP
    assert outcome.finished.usage.completion_tokens == 3
    assert outcome.finished.statistics.accepted == 3
    beyond = await Setting(policy=FakePolicy(6), max_tokens=3, stop_ids=(TOKENS[3],)).run()
    assert beyond.token_ids == TOKENS[:3]
    assert beyond.finished.reason is FinishReason.LENGTH


async def test_an_answer_that_ends_at_once_is_empty() -> None:
    outcome = await Setting(verifier=FakeVerifier(script(len(PROMPT), [EOS_ID]))).run()
    assert outcome.deltas == []
    assert outcome.finished.usage.completion_tokens == 0
    assert outcome.finished.reason is FinishReason.STOP


async def test_one_token_needs_no_draft() -> None:
    setting = Setting(max_tokens=1)
    assert (await setting.run()).token_ids == TOKENS[:1]
    assert setting.draft.openings == []


@pytest.mark.parametrize("max_tokens", range(2, 14))
async def test_never_more_is_drafted_than_is_still_needed(max_tokens: int) -> None:
    setting = Setting(policy=FakePolicy(5), max_tokens=max_tokens)
    await setting.run()
    for advance, check in zip(setting.draft.advances, setting.verifier.checks, strict=False):
        committed = check.base_len - len(PROMPT)
        assert 1 <= advance.max_tokens <= max_tokens - committed - 1
    last = setting.verifier.checks[-1]
    assert last.base_len + len(last.draft_token_ids) + 1 <= len(PROMPT) + max_tokens


async def test_a_chunk_is_never_longer_than_any_limit() -> None:
    for limit in range(1, 5):
        few = dataclasses.replace(LIMITS, max_chunk_tokens=limit)
        for setting in (
            Setting(policy=FakePolicy(8), max_draft_tokens=limit),
            Setting(policy=FakePolicy(8), draft=FakeDraft(TARGET, limits=few)),
            Setting(policy=FakePolicy(8), verifier=FakeVerifier(TARGET, limits=few)),
            Setting(policy=FakePolicy(limit)),
        ):
            assert (await setting.run()).token_ids == TOKENS
            assert max(advance.max_tokens for advance in setting.draft.advances) == limit
            assert {state.max_draft_tokens for state in setting.policy.states} <= {limit, 16}


@pytest.mark.parametrize("setting", [Setting(max_draft_tokens=0), Setting(policy=FakePolicy(0))], ids=["limit", "plan"])
async def test_speculation_off_asks_nothing_of_the_draft(setting: Setting) -> None:
    outcome = await setting.run()
    assert outcome.token_ids == TOKENS
    assert setting.draft.openings == []
    assert outcome.finished.statistics.drafted == 0
    assert outcome.finished.statistics.bonus == len(TOKENS)


async def test_the_prompt_is_opened_at_both_sides_before_any_wait() -> None:
    setting = Setting()
    setting.verifier.verdict_s = 0.02
    task = asyncio.ensure_future(setting.run())
    while not setting.draft.advances:
        await asyncio.sleep(0)
    assert [opening.prompt_token_ids for opening in setting.verifier.openings] == [PROMPT]
    assert [opening.prompt_token_ids for opening in setting.draft.openings] == [PROMPT]
    await task
    assert setting.draft.openings[0].seed == setting.verifier.openings[0].seed == 11
    assert setting.draft.openings[0].sampling == setting.verifier.openings[0].sampling == SamplingParams(0.5)


async def test_the_draft_is_told_everything_that_was_committed() -> None:
    setting = Setting(draft=FakeDraft(every_third_wrong))
    await setting.run()
    told = [*PROMPT, *(token_id for advance in setting.draft.advances for token_id in advance.committed_token_ids)]
    assert told == [TARGET(position) if position >= 3 else PROMPT[position] for position in range(len(told))]
    assert len(told) > len(TOKENS) - 5


async def test_rejection_opens_with_laws_and_passes_them_on() -> None:
    setting = Setting(acceptance=AcceptanceRule.REJECTION)
    assert (await setting.run()).token_ids == TOKENS
    assert setting.draft.openings[0].distribution
    assert setting.verifier.openings[0].acceptance is AcceptanceRule.REJECTION
    assert all(len(check.laws) == len(check.draft_token_ids) for check in setting.verifier.checks)
    assert sum(len(check.laws) for check in setting.verifier.checks) > 0
    coupled = Setting()
    await coupled.run()
    assert not coupled.draft.openings[0].distribution
    assert all(check.laws == () for check in coupled.verifier.checks)


async def test_the_policy_hears_of_every_round() -> None:
    setting = Setting(policy=FakePolicy(3, stop_entropy_nats=1.5))
    outcome = await setting.run()
    assert len(setting.policy.outcomes) == outcome.finished.statistics.rounds
    first = setting.policy.outcomes[0]
    assert (first.drafted_len, first.accepted_len, first.entropies_nats) == (3, 3, (0.5,) * 3)
    assert (first.draft_ns, first.queue_ns, first.forward_ns, first.batch_size) == (7, 1, 2, 3)
    assert first.round_ns > 0
    assert setting.policy.states[0].committed_len == len(PROMPT)
    assert setting.policy.states[0].remaining_tokens == 200
    assert setting.policy.states[0].temperature == 0.5
    assert setting.draft.advances[0].stop_entropy_nats == 1.5


async def test_a_trace_comes_with_every_round_when_asked_for() -> None:
    setting = Setting(draft=FakeDraft(every_third_wrong), stop=("quick brown FOX",), round_trace=True)
    outcome = await setting.run()
    assert outcome.text == TEXT
    traces = [delta.round for delta in outcome.deltas]
    assert len(traces) == outcome.finished.statistics.rounds
    for trace, check in zip(traces, setting.verifier.checks, strict=True):
        assert trace is not None
        assert (trace.base_len, trace.draft_token_ids) == (check.base_len, check.draft_token_ids)
        assert trace.max_tokens <= 4
    plain = await Setting().run()
    assert all(delta.round is None for delta in plain.deltas)


async def test_what_the_policy_wants_is_asked_for_and_told() -> None:
    policy = FakePolicy(3, stop_prob=0.25, stop_survival=0.125, signals=frozenset({Signal.KL, Signal.DRAFT_PROB}))
    setting = Setting(policy=policy)
    await setting.run()
    opened = setting.draft.openings[0]
    assert (opened.acceptance, opened.distribution, opened.draft_probs) == (AcceptanceRule.COUPLED, True, True)
    assert setting.verifier.openings[0].wanted_signals == {Signal.KL}
    assert len(setting.verifier.checks[0].laws) == 3
    advance = setting.draft.advances[0]
    assert (advance.stop_prob, advance.stop_survival) == (0.25, 0.125)
    first = setting.policy.outcomes[0]
    assert (first.draft_probs, first.kl_nats) == ((0.75,) * 3, (0.0, 0.1, 0.2))
    assert first.js_distance == first.target_entropies_nats == ()


async def test_what_no_policy_wants_is_not_asked_for() -> None:
    setting = Setting()
    await setting.run()
    opened = setting.draft.openings[0]
    assert (opened.distribution, opened.draft_probs) == (False, False)
    assert setting.verifier.openings[0].wanted_signals == frozenset()
    assert all(check.laws == () for check in setting.verifier.checks)


async def test_without_speculation_there_is_nothing_to_compare() -> None:
    setting = Setting(policy=FakePolicy(3, signals=frozenset(Signal)), max_draft_tokens=0)
    await setting.run()
    assert setting.verifier.openings[0].wanted_signals == frozenset()


async def test_a_trace_has_all_signals_when_they_are_asked_for() -> None:
    setting = Setting(round_trace=True, round_signals=True)
    first = (await setting.run()).deltas[0].round
    assert first is not None
    assert first.draft_probs == (0.75,) * 4
    assert first.signals.kl_nats == (0.0, 0.1, 0.2, 0.3)
    assert len(first.signals.js_distance) == len(first.signals.target_entropies_nats) == 4
    assert first.next_token_id == TOKENS[4]
    assert first.policy_state == {"rounds": 0.0}


@pytest.mark.parametrize("surplus", [-1, 1])
async def test_signals_that_do_not_fit_the_chunk_fail_the_request(surplus: int) -> None:
    verifier = FakeVerifier(TARGET, surplus_signals=surplus)
    with pytest.raises(ExceptionGroup) as caught:
        await Setting(verifier=verifier, policy=FakePolicy(3, signals=frozenset({Signal.KL}))).run()
    assert caught.group_contains(RemoteError)


async def test_the_statistics_say_that_a_rule_is_lossy() -> None:
    options = AdasdOptions(AdasdVariant.MIDPOINT)
    setting = Setting(acceptance=AcceptanceRule.ADASD, adasd=options)
    statistics = (await setting.run()).finished.statistics
    assert (statistics.acceptance, statistics.lossy) == (AcceptanceRule.ADASD, True)
    assert setting.verifier.openings[0].adasd == options
    assert setting.draft.openings[0].acceptance is AcceptanceRule.ADASD
    unused = (await Setting(acceptance=AcceptanceRule.ADASD, max_draft_tokens=0).run()).finished.statistics
    assert (unused.acceptance, unused.lossy) == (AcceptanceRule.ADASD, False)
    assert not (await Setting(acceptance=AcceptanceRule.REJECTION).run()).finished.statistics.lossy


TROUBLE = [
    *(("advance", at) for at in (1, 2, 4)),
    *(("drafted", at) for at in (1, 2, 4)),
    ("open", 1),
]


@pytest.mark.parametrize(("place", "at"), TROUBLE)
@pytest.mark.parametrize("failure", [NotReadyError("gone"), CapacityError("full"), None], ids=["dead", "full", "hung"])
async def test_a_draft_that_fails_does_not_end_or_change_the_stream(
    place: str, at: int, failure: NotReadyError | CapacityError | None
) -> None:
    draft = FakeDraft(TARGET, fails_in=place, fails_at=at, failure=failure)
    outcome = await Setting(draft=draft).run()
    assert outcome.text == TEXT
    assert outcome.token_ids == TOKENS
    assert False in draft.reports
    if place == "open":
        assert outcome.finished.statistics.drafted == 0


def too_long(drafted: Drafted) -> Drafted:
    extra = (*drafted.token_ids, 1)
    return dataclasses.replace(drafted, token_ids=extra, entropies_nats=(0.0,) * len(extra))


def unknown_ids(drafted: Drafted) -> Drafted:
    return dataclasses.replace(drafted, token_ids=(INFO.vocab_size,) * len(drafted.token_ids))


def stale(drafted: Drafted) -> Drafted:
    return dataclasses.replace(drafted, base_len=drafted.base_len - 1)


@pytest.mark.parametrize("spoil", [too_long, unknown_ids, stale])
async def test_a_chunk_that_breaks_the_protocol_is_never_sent_on(spoil: Callable[[Drafted], Drafted]) -> None:
    draft = FakeDraft(TARGET, spoil=spoil)
    outcome = await Setting(draft=draft).run()
    assert outcome.token_ids == TOKENS
    assert outcome.finished.statistics.drafted == 0


async def test_a_hung_draft_delays_one_round_only() -> None:
    setting = Setting(
        draft=FakeDraft(TARGET, fails_in="drafted", fails_at=2, failure=None),
        patience=dataclasses.replace(PATIENCE, retry_s=30),
    )
    begun = time.monotonic()
    assert (await setting.run()).token_ids == TOKENS
    assert time.monotonic() - begun < 20 * PATIENCE.chunk_floor_s
    assert setting.draft.reports == [True, False]


async def test_a_draft_that_fails_again_and_again_is_tried_ever_more_rarely() -> None:
    def useless(drafted: Drafted) -> Drafted:
        return too_long(drafted) if drafted.token_ids else drafted

    setting = Setting(draft=FakeDraft(TARGET, spoil=useless))
    setting.verifier.verdict_s = 0.005
    assert (await setting.run()).token_ids == TOKENS
    opened_s = setting.draft.opened_s
    assert len(opened_s) > 2
    waits_s = [after - before for before, after in itertools.pairwise(opened_s)]
    assert all(wait_s >= PATIENCE.retry_s * 2**number for number, wait_s in enumerate(waits_s))


async def test_speculation_resumes_with_the_committed_prefix() -> None:
    setting = Setting(draft=FakeDraft(TARGET, fails_in="drafted", fails_at=2))
    setting.verifier.verdict_s = 0.02
    outcome = await setting.run()
    assert outcome.token_ids == TOKENS
    first, second = setting.draft.openings
    assert first.prompt_token_ids == PROMPT
    committed = len(second.prompt_token_ids)
    assert len(PROMPT) < committed < len(PROMPT) + len(TOKENS)
    assert second.prompt_token_ids == (*PROMPT, *TOKENS[: committed - len(PROMPT)])
    assert setting.draft.advances[2] == Advance(committed, (), 0)
    assert outcome.finished.statistics.drafted > 8
    assert setting.draft.reports[:3] == [True, False, True]


async def test_a_draft_that_appears_is_used() -> None:
    setting = Setting(draft=FakeDraft(TARGET, absent=True))
    setting.verifier.verdict_s = 0.01
    task = asyncio.ensure_future(setting.run())
    while len(setting.verifier.checks) < 3:
        await asyncio.sleep(0.001)
    setting.draft.absent = False
    outcome = await task
    assert outcome.token_ids == TOKENS
    assert outcome.finished.statistics.accepted > 0


async def test_no_request_waits_for_a_draft_that_failed_before() -> None:
    setting = Setting(draft=FakeDraft(TARGET, trusted=False, fails_at=1, failure=None))
    setting.patience = dataclasses.replace(PATIENCE, warm_up_s=30)
    begun = time.monotonic()
    assert (await setting.run()).token_ids == TOKENS
    assert time.monotonic() - begun < 10
    assert setting.draft.streams[0].closed


async def test_a_full_draft_context_is_the_end_of_drafting() -> None:
    draft = FakeDraft(TARGET, info=dataclasses.replace(DRAFT_INFO, context_length=len(PROMPT) + 12))
    setting = Setting(draft=draft)
    assert (await setting.run()).token_ids == TOKENS
    told = 0
    for advance in draft.advances:
        told = advance.base_len + len(advance.committed_token_ids)
        assert told + advance.max_tokens <= draft.info.context_length
    assert len(PROMPT) + 6 < told
    assert len(draft.openings) == 1
    short = FakeDraft(TARGET, info=dataclasses.replace(DRAFT_INFO, context_length=len(PROMPT)))
    assert (await Setting(draft=short).run()).token_ids == TOKENS
    assert short.openings == []


async def test_a_draft_that_says_its_context_is_full_is_not_asked_again() -> None:
    draft = FakeDraft(TARGET, spoil=lambda drafted: dataclasses.replace(drafted, stop_reason=StopReason.CONTEXT))
    assert (await Setting(draft=draft).run()).token_ids == TOKENS
    assert len(draft.advances) == len(draft.openings) == 1


async def test_a_verifier_that_fails_ends_the_stream_with_its_error() -> None:
    failure = CapacityError("full", 2.0)
    setting = Setting(verifier=FakeVerifier(TARGET, fails_at=3, failure=failure))
    with pytest.RaisesGroup(CapacityError) as caught:
        await setting.run()
    assert caught.value.exceptions[0] is failure
    assert all(stream.closed for stream in setting.verifier.streams)
    assert all(stream.closed for stream in setting.draft.streams)


@pytest.mark.parametrize("waiting_for", ["verifier", "draft", "client", "another draft"])
async def test_a_cancelled_request_ends_both_sessions_at_once(waiting_for: str) -> None:
    setting = Setting()
    never = asyncio.Event()
    if waiting_for == "verifier":
        setting.verifier.verdict_s = 100
    elif waiting_for == "draft":
        setting.draft.fails_at, setting.draft.failure = 1, None
        setting.patience = DraftPatience()
    elif waiting_for == "another draft":
        setting.draft.trusted, setting.draft.fails_at, setting.draft.failure = False, 1, None
        setting.patience, setting.verifier.verdict_s = DraftPatience(), 100

    async def deliver(delta: Delta) -> None:
        if waiting_for == "client":
            await never.wait()

    task = asyncio.ensure_future(setting.decoder().run(deliver))
    await asyncio.sleep(0.05)
    assert not task.done()
    assert setting.draft.streams
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 1)
    assert all(stream.closed for stream in setting.verifier.streams)
    assert all(stream.closed for stream in setting.draft.streams)


async def test_a_slow_client_holds_at_most_one_round_back() -> None:
    setting = Setting()
    free = asyncio.Event()
    deltas: list[Delta] = []

    async def deliver(delta: Delta) -> None:
        await free.wait()
        deltas.append(delta)

    task = asyncio.ensure_future(setting.decoder().run(deliver))
    await asyncio.sleep(0.05)
    assert len(setting.verifier.checks) == 1
    assert len(setting.draft.advances) == 2
    free.set()
    finished = await task
    assert "".join(delta.text for delta in deltas) == TEXT
    assert finished.statistics.rounds > 2
    assert all(outcome.round_ns < 40_000_000 for outcome in setting.policy.outcomes)
