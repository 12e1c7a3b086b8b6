"""Looked-up chunks in the loop and in what is told of it: the draft service's real logic, a scripted target."""

import dataclasses
import time
from collections.abc import AsyncIterator

import pytest

from controller.answer import StopRules
from controller.decoder import Decoder, DecodeTask
from controller.drafting import DraftPatience
from controller.policies.base import ChunkPlan, ChunkPolicy, PlanState, RoundOutcome
from controller.policies.costs import RoundCosts
from controller.policies.guard import GuardSettings
from controller.policies.registry import PolicyFactory
from controller.pool import check_pair
from controller.text import Detokenizer
from controller.tokenizer import Tokenizer
from controller.transport import Deadline
from draft_service.config import DraftConfig
from draft_service.drafter import Drafter
from draft_service.lookup_drafter import INFO, LookupDrafter
from draft_service.servicer import DraftProcess
from speculative.errors import IncompatibleModelError
from speculative.generation import (
    Delta,
    Finished,
    GenerationRequest,
    RoundTrace,
    SpeculationOptions,
    StopConditions,
    TokenPrompt,
)
from speculative.sampling.types import AcceptanceRule, SamplingParams
from tests.controller import fakes, small_tokenizers
from tests.controller.fakes import FakeDraft, FakePolicy, FakeVerifier, script
from tests.support.engines import RecordingRunner, running_engine
from tests.support.pairs import LocalDraft
from tests.support.servers import serving, verifier_server
from tests.support.trio import TARGET, Client, controller, trio

PASSAGE = tuple(range(100, 164))
PROMPT = (1, *PASSAGE, 2)
COPY = script(len(PROMPT), [*PASSAGE, 399])
"""A target that quotes the passage and ends."""


async def decode(
    draft: LocalDraft | FakeDraft,
    policy: ChunkPolicy,
    acceptance: AcceptanceRule = AcceptanceRule.COUPLED,
    *,
    lookup: bool = True,
) -> tuple[Finished, list[RoundTrace]]:
    deltas: list[Delta] = []

    async def deliver(delta: Delta) -> None:
        deltas.append(delta)

    task = DecodeTask(
        prompt_token_ids=PROMPT,
        sampling=SamplingParams(),
        seed=1,
        acceptance=acceptance,
        rules=StopRules(200, frozenset({399})),
        max_draft_tokens=16,
        round_trace=True,
        lookup=lookup,
    )
    decoder = Decoder(
        task,
        policy,
        FakeVerifier(COPY),
        draft,
        Detokenizer(Tokenizer(small_tokenizers.files(small_tokenizers.byte_level())), continues_text=True),
        DraftPatience(),
        Deadline(time.monotonic_ns, time.monotonic_ns() + 10**10),
        time.monotonic_ns,
    )
    finished = await decoder.run(deliver)
    assert tuple(token_id for delta in deltas for token_id in delta.token_ids) == PASSAGE
    return finished, [delta.round for delta in deltas if delta.round is not None]


@pytest.fixture
async def draft() -> AsyncIterator[tuple[LocalDraft, RecordingRunner]]:
    async with running_engine("emulated:draft?eos_rate=0&context=4000") as (engine, runner):
        yield LocalDraft(Drafter(engine)), runner


async def test_a_quoted_passage_comes_in_ever_longer_chunks_whatever_the_policy_plans(
    draft: tuple[LocalDraft, RecordingRunner],
) -> None:
    source, runner = draft
    policy = FakePolicy(2)
    finished, rounds = await decode(source, policy)
    lengths = [one.accepted_len for one in rounds if one.looked_up]
    assert lengths[:3] == [4, 8, 16]
    statistics = finished.statistics
    assert statistics.rounds <= 9
    assert statistics.looked_up_accepted >= len(PASSAGE) - 12
    assert statistics.looked_up == sum(one.looked_up for one in rounds)
    assert sum(runner.fed) < len(PROMPT) + 12  # the prompt, and the few tokens before the passage was recognised
    assert [outcome.looked_up_len for outcome in policy.outcomes] == [one.looked_up for one in rounds]


@pytest.mark.parametrize("acceptance", list(AcceptanceRule))
async def test_without_a_model_the_policy_says_how_far_and_learns_from_every_round(acceptance: AcceptanceRule) -> None:
    policy = FakePolicy(5)
    _, rounds = await decode(LocalDraft(LookupDrafter(1)), policy, acceptance)
    assert max(one.accepted_len for one in rounds) == 5
    assert all(one.looked_up == len(one.draft_token_ids) for one in rounds)
    assert [outcome.looked_up_len for outcome in policy.outcomes] == [0] * len(rounds)


@pytest.mark.parametrize(("lookup", "most"), [(True, 4), (False, None)])
async def test_the_draft_is_asked_to_look_up_only_where_the_request_does(lookup: bool, most: int | None) -> None:
    fake = FakeDraft(COPY)
    await decode(fake, FakePolicy(6), lookup=lookup)
    assert fake.openings[0].lookup is lookup
    assert fake.advances[0].max_tokens == 6
    assert fake.advances[0].max_lookup_tokens == most


def outcome(drafted_len: int, accepted_len: int, looked_up_len: int = 0) -> RoundOutcome:
    return RoundOutcome(
        drafted_len, accepted_len, (0.0,) * drafted_len, 10, 0, 100, 120, 1, looked_up_len=looked_up_len
    )


@pytest.mark.parametrize("guard", [None, GuardSettings()])
def test_looked_up_rounds_teach_a_policy_nothing_about_the_model(guard: GuardSettings | None) -> None:
    state = PlanState(100, 100, 16)
    plans: list[list[ChunkPlan]] = []
    for looked_up_rounds in (0, 20):
        factory = PolicyFactory(guard)
        policy = factory.make("heuristic", {"guard": float(guard is not None)})
        policy.plan(state)
        policy.observe(outcome(4, 4))
        acceptance = factory.knowledge.yields.acceptance()
        for _ in range(looked_up_rounds):
            policy.observe(outcome(12, 0, looked_up_len=12))
        assert factory.knowledge.yields.acceptance() == acceptance
        plans.append([policy.plan(state)])
    assert plans[0] == plans[1]


def test_looked_up_rounds_teach_what_verifying_costs_but_not_what_drafting_costs() -> None:
    costs = RoundCosts()
    costs.observe(outcome(0, 0), 0.0, resumed=False)
    costs.observe(outcome(4, 2), 4.0, resumed=False)
    before = costs.round_ns(8, 1)
    costs.observe(dataclasses.replace(outcome(8, 2, looked_up_len=8), draft_ns=0, round_ns=110), 8.0, resumed=False)
    assert costs.round_ns(8, 1) == before
    costs.observe(
        dataclasses.replace(outcome(8, 2, looked_up_len=8), draft_ns=0, forward_ns=900, round_ns=910),
        8.0,
        resumed=False,
    )
    assert costs.round_ns(8, 1) > before


def test_a_draft_without_a_model_fits_every_target_and_one_with_a_model_only_its_own() -> None:
    check_pair(INFO, fakes.INFO)
    with pytest.raises(IncompatibleModelError):
        check_pair(dataclasses.replace(INFO, vocab_fingerprint="0"), fakes.INFO)


def asking(acceptance: AcceptanceRule, temperature: float, **options: object) -> GenerationRequest:
    return GenerationRequest(
        TokenPrompt((7, 8, 9, 10) * 3),
        SamplingParams(temperature),
        seed=5,
        stop=StopConditions(max_tokens=40),
        speculation=SpeculationOptions("fixed", {"guard": 0.0}, acceptance=acceptance, **options),  # type: ignore[arg-type]
        round_trace=True,
    )


@pytest.fixture
async def without_model() -> AsyncIterator[Client]:
    """Real services, the draft one without a model."""
    process = DraftProcess(DraftConfig(model="lookup"))
    async with (
        verifier_server(TARGET) as verifier,
        serving(process.names, process.register) as (_, address),
        process.running(),
        controller(verifier.address, address) as client,
    ):
        await client.has_draft()
        yield client


@pytest.mark.parametrize("acceptance", [AcceptanceRule.COUPLED, AcceptanceRule.REJECTION])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_service_without_a_model_drafts_for_any_target(
    without_model: Client, acceptance: AcceptanceRule, temperature: float
) -> None:
    info = await without_model.info(5)
    assert info.draft is not None
    assert (info.draft.name, info.draft.vocab_fingerprint) == ("lookup", "")
    answered = await without_model.answer(asking(acceptance, temperature))
    statistics = answered.finished.statistics
    assert statistics.looked_up == statistics.drafted > 0
    assert len(answered.token_ids) == 40
    if acceptance is AcceptanceRule.COUPLED or temperature == 0.0:
        plain = await without_model.answer(asking(acceptance, temperature, max_draft_tokens=0))
        assert answered.token_ids == plain.token_ids


async def test_a_request_can_switch_lookups_off_and_adasd_has_them_only_if_asked() -> None:
    async with trio() as client:
        for acceptance, asked, expected in (
            (AcceptanceRule.COUPLED, None, True),
            (AcceptanceRule.COUPLED, False, False),
            (AcceptanceRule.ADASD, None, False),
            (AcceptanceRule.ADASD, True, True),
        ):
            answered = await client.answer(asking(acceptance, 1.0, prompt_lookup=asked))
            assert (answered.finished.statistics.looked_up > 0) is expected, (acceptance, asked)


async def test_the_server_can_switch_lookups_off() -> None:
    async with trio(prompt_lookup=False) as client:
        assert (await client.answer(asking(AcceptanceRule.COUPLED, 1.0))).finished.statistics.looked_up == 0
        on = await client.answer(asking(AcceptanceRule.COUPLED, 1.0, prompt_lookup=True))
        assert on.finished.statistics.looked_up > 0
