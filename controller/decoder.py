"""The loop of one request (docs/protocol.md, "A round").

    plan -> Advance -> Drafted -> Check -> Verdict -> commit -> deliver

Invariant: what is delivered is what the target commits, cut where the answer ends; the draft changes when it comes,
never what. The text of a round is delivered while the next one is under way, so a client that reads slowly holds at
most one round back.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

from controller.answer import Answer, Ending, StopRules
from controller.draft_buffer import DraftBuffer
from controller.drafting import Drafting, DraftPatience
from controller.lookup_length import LookupLength
from controller.policies.base import ChunkPlan, ChunkPolicy, PlanState, RoundOutcome, Signal
from controller.tally import Tally
from controller.text import Detokenizer
from controller.transport import Clock, Deadline, DraftSource, VerifyReplica, VerifyStream
from speculative.generation import Delta, Finished, RoundTrace
from speculative.messages import Drafted, DraftOpen, Verdict, VerifyOpen
from speculative.sampling.types import PAPERS_ADASD, AcceptanceRule, AdasdOptions, SamplingParams

Deliver = Callable[[Delta], Awaitable[None]]
"""Sends a part of the answer to the client; may wait for it."""

Record = Callable[[RoundTrace], None]
"""Takes note of a round that has been verified."""


@dataclass(frozen=True, slots=True)
class DecodeTask:
    """What to decode. `max_draft_tokens` 0 switches speculation off; `round_signals`: all signals are wanted."""

    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    acceptance: AcceptanceRule
    rules: StopRules
    max_draft_tokens: int
    round_trace: bool = False
    round_signals: bool = False
    adasd: AdasdOptions = PAPERS_ADASD
    lookup: bool = False
    """Whether drafts look repetitions up first."""


@dataclass(slots=True)
class _Round:
    """One round under way; `policy_state` is what the plan rests on, for the trace."""

    plan: ChunkPlan
    policy_state: Mapping[str, float]
    begun_ns: int
    drafted: Drafted | None = None
    by_model: bool = True
    """Whether the draft that was asked has a model."""
    delivery_ns: int = 0
    """Time spent on the client, which is not the round's."""


class Decoder:
    """Decodes one request with one verifier session and the drafts of `drafts`."""

    def __init__(
        self,
        task: DecodeTask,
        policy: ChunkPolicy,
        verifier: VerifyReplica,
        drafts: DraftSource,
        detokenizer: Detokenizer,
        patience: DraftPatience,
        deadline: Deadline,
        clock: Clock,
        record: Record | None = None,
    ) -> None:
        self._task = task
        self._record = record
        self._policy = policy
        self._verifier = verifier
        self._drafts = drafts
        self._patience = patience
        self._deadline = deadline
        self._clock = clock
        self._signals = self._wanted_signals()
        self._with_laws = task.acceptance.needs_laws or any(signal.compares_laws for signal in self._signals)
        self._buffer = DraftBuffer(
            task.prompt_token_ids,
            verifier.info.vocab_size,
            with_laws=self._with_laws,
            judged_by_laws=task.acceptance.needs_laws,
        )
        self._answer = Answer(detokenizer, task.rules)
        self._tally = Tally(clock, task.acceptance)
        self._lookup_length = LookupLength()
        self._undelivered: Delta | None = None

    async def run(self, deliver: Deliver) -> Finished:
        """Decodes until the answer ends. Errors of the verifier pass through; both sessions end at once in any case."""
        async with asyncio.TaskGroup() as tasks:
            stream = await self._verifier.open(self._verify_open(), self._deadline.remaining_s())
            with closing(stream), closing(self._drafting(tasks)) as drafting:
                ending = None
                while ending is None:
                    ending = await self._round(stream, drafting, deliver)
        await self._deliver(deliver)
        return self._finished(ending)

    async def _round(self, stream: VerifyStream, drafting: Drafting, deliver: Deliver) -> Ending | None:
        begun_ns = self._clock()
        plan = self._plan(drafting)
        current = _Round(plan, self._policy.snapshot() if self._traced else {}, begun_ns)
        current.by_model = drafting.has_model
        if await drafting.advance(current.plan, self._max_lookup_tokens(drafting)):
            current.delivery_ns += await self._deliver(deliver)
            current.drafted = await self._drafted(drafting)
        await stream.check(self._buffer.check())
        current.delivery_ns += await self._deliver(deliver)
        self._commit(current, await self._verdict(stream))
        return self._answer.ending

    def _plan(self, drafting: Drafting) -> ChunkPlan:
        """The policy's plan, cut to what can be asked for and to what is still needed: the target adds one itself."""
        state = self._plan_state(drafting)
        plan = self._policy.plan(state)
        return dataclasses.replace(plan, max_tokens=min(plan.max_tokens, state.limit))

    def _plan_state(self, drafting: Drafting) -> PlanState:
        limit = min(self._task.max_draft_tokens, self._verifier.limits.max_chunk_tokens, drafting.max_tokens)
        remaining = self._answer.remaining_tokens
        return PlanState(self._buffer.committed_len, remaining, limit, self._task.sampling.temperature)

    def _max_lookup_tokens(self, drafting: Drafting) -> int | None:
        """How far to look up; None, as far as to draft, where looking up is all that the draft does."""
        if not self._task.lookup or not drafting.has_model:
            return None
        return self._lookup_length.next(self._plan_state(drafting).limit)

    async def _drafted(self, drafting: Drafting) -> Drafted | None:
        begun_ns = self._clock()
        drafted = await drafting.drafted()
        self._tally.waited(draft_ns=self._clock() - begun_ns)
        return drafted

    async def _verdict(self, stream: VerifyStream) -> Verdict:
        begun_ns = self._clock()
        verdict = await stream.verdict()
        self._tally.waited(verify_ns=self._clock() - begun_ns)
        return verdict

    def _commit(self, current: _Round, verdict: Verdict) -> None:
        chunk = self._buffer.chunk
        committed = self._buffer.commit(verdict)
        for token_id, origin in zip(committed.token_ids, committed.origins, strict=True):
            self._answer.push(token_id, origin)
        looked_up = current.drafted.looked_up if current.drafted else 0
        self._tally.verified(len(chunk), verdict.accepted_len, looked_up)
        self._lookup_length.observe(looked_up, verdict.accepted_len)
        outcome = self._outcome(current, chunk, verdict)
        self._policy.observe(outcome)
        delta = self._answer.take()
        if self._traced:
            trace = _trace(current, chunk, verdict, outcome)
            if self._record is not None:
                self._record(trace)
            if self._task.round_trace:
                delta = dataclasses.replace(delta, round=trace)
        if delta.token_ids or delta.round is not None:
            self._undelivered = delta

    def _outcome(self, current: _Round, chunk: tuple[int, ...], verdict: Verdict) -> RoundOutcome:
        drafted = current.drafted
        return RoundOutcome(
            drafted_len=len(chunk),
            accepted_len=verdict.accepted_len,
            entropies_nats=drafted.entropies_nats if drafted else (),
            draft_ns=drafted.draft_ns if drafted else 0,
            queue_ns=verdict.queue_ns,
            forward_ns=verdict.forward_ns,
            round_ns=self._clock() - current.begun_ns - current.delivery_ns,
            batch_size=verdict.batch_size,
            draft_probs=drafted.draft_probs if drafted else (),
            kl_nats=verdict.signals.kl_nats,
            js_distance=verdict.signals.js_distance,
            target_entropies_nats=verdict.signals.target_entropies_nats,
            looked_up_len=drafted.looked_up if drafted and current.by_model else 0,
        )

    async def _deliver(self, deliver: Deliver) -> int:
        """Sends what has not been sent; returns how long that took, in nanoseconds."""
        delta, self._undelivered = self._undelivered, None
        if delta is None:
            return 0
        self._tally.delivered(delta)
        begun_ns = self._clock()
        await deliver(delta)
        return self._clock() - begun_ns

    def _finished(self, ending: Ending) -> Finished:
        return Finished(
            ending.reason,
            ending.matched_stop,
            ending.matched_token_id,
            self._tally.usage(len(self._task.prompt_token_ids)),
            self._tally.statistics(),
        )

    def _verify_open(self) -> VerifyOpen:
        task = self._task
        signals = self._signals - {Signal.DRAFT_PROB}
        return VerifyOpen(task.prompt_token_ids, task.sampling, task.seed, task.acceptance, signals, task.adasd)

    def _draft_open(self, committed_token_ids: tuple[int, ...]) -> DraftOpen:
        task = self._task
        return DraftOpen(
            committed_token_ids,
            task.sampling,
            task.seed,
            distribution=self._with_laws,
            acceptance=task.acceptance,
            draft_probs=Signal.DRAFT_PROB in self._signals,
            lookup=task.lookup,
        )

    @property
    def _traced(self) -> bool:
        return self._task.round_trace or self._record is not None

    def _wanted_signals(self) -> frozenset[Signal]:
        """What the policy and the trace want to know; nothing where nothing is drafted."""
        if self._task.max_draft_tokens == 0:
            return frozenset()
        return frozenset(Signal) if self._task.round_signals else self._policy.wanted_signals

    def _drafting(self, tasks: asyncio.TaskGroup) -> Drafting:
        drafting = Drafting(
            self._drafts, self._buffer, self._draft_open, self._patience, self._deadline, self._clock, tasks
        )
        if self._task.max_draft_tokens > 0:
            drafting.start()
        return drafting


def _trace(current: _Round, chunk: tuple[int, ...], verdict: Verdict, outcome: RoundOutcome) -> RoundTrace:
    plan = current.plan
    return RoundTrace(
        base_len=verdict.base_len,
        draft_token_ids=chunk,
        draft_entropies_nats=outcome.entropies_nats,
        max_tokens=plan.max_tokens,
        stop_entropy_nats=plan.stop_entropy_nats,
        accepted_len=verdict.accepted_len,
        draft_ns=outcome.draft_ns,
        queue_ns=outcome.queue_ns,
        forward_ns=outcome.forward_ns,
        round_ns=outcome.round_ns,
        batch_size=verdict.batch_size,
        next_token_id=verdict.next_token_id,
        draft_probs=outcome.draft_probs,
        signals=verdict.signals,
        stop_prob=plan.stop_prob,
        stop_survival=plan.stop_survival,
        policy_state=current.policy_state,
        looked_up=current.drafted.looked_up if current.drafted else 0,
    )
