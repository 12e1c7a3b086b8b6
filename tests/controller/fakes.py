"""A verifier and a draft whose every token is chosen, so that the whole loop is deterministic; no network."""

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from controller.policies.base import ChunkPlan, ChunkPolicy, PlanState, RoundOutcome
from speculative.errors import OutriderError
from speculative.messages import (
    Advance,
    Check,
    Drafted,
    DraftOpen,
    ModelInfo,
    ServiceLimits,
    StopReason,
    Verdict,
    VerifyOpen,
)
from speculative.sampling.types import Signal, Signals, SparseLaw

Law = Callable[[int], int]
"""The token at an absolute position."""

INFO = ModelInfo(
    name="target",
    revision="1",
    vocab_size=400,
    vocab_fingerprint="f" * 64,
    context_length=1000,
    eos_token_ids=(399,),
    dtype="float32",
    device="cpu",
)
DRAFT_INFO = dataclasses.replace(INFO, name="draft")
LIMITS = ServiceLimits(max_chunk_tokens=16, max_sessions=8, max_message_bytes=2**22)


def script(prompt_len: int, tokens: Sequence[int], after: int = 0) -> Law:
    """A law that gives `tokens` behind the prompt, then `after` for good."""
    return lambda position: tokens[position - prompt_len] if position - prompt_len < len(tokens) else after


class FakeVerifyStream:
    def __init__(self, verifier: "FakeVerifier", opening: VerifyOpen) -> None:
        self._verifier = verifier
        self._opening = opening
        self._committed_len = len(opening.prompt_token_ids)
        self._check: Check | None = None
        self.closed = False

    async def check(self, message: Check) -> None:
        assert not self.closed
        assert message.base_len == self._committed_len
        assert len(message.draft_token_ids) <= self._verifier.limits.max_chunk_tokens
        self._check = message
        self._verifier.checks.append(message)

    async def verdict(self) -> Verdict:
        await asyncio.sleep(self._verifier.verdict_s)
        if len(self._verifier.checks) == self._verifier.fails_at:
            raise self._verifier.failure
        check, self._check = self._check, None
        assert check is not None
        accepted_len = 0
        for index, token_id in enumerate(check.draft_token_ids):
            if token_id != self._verifier.law(check.base_len + index):
                break
            accepted_len += 1
        own = self._verifier.law(check.base_len + accepted_len)
        self._committed_len += accepted_len + 1
        return Verdict(check.base_len, accepted_len, own, 1, 2, 3, 4, self._signals(len(check.draft_token_ids)))

    def _signals(self, length: int) -> Signals:
        """Numbers by position: KL 0.0, 0.1, ...; distances and entropies likewise, from 0.5 and from 1."""
        wanted = self._opening.wanted_signals

        def values(signal: Signal, first: float) -> tuple[float, ...]:
            count = length + self._verifier.surplus_signals
            return tuple(first + index / 10 for index in range(count)) if signal in wanted else ()

        return Signals(values(Signal.KL, 0.0), values(Signal.JS_DISTANCE, 0.5), values(Signal.TARGET_ENTROPY, 1.0))

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeVerifier:
    """A `VerifyReplica`: its output is `law`, whatever is drafted."""

    law: Law
    info: ModelInfo = INFO
    limits: ServiceLimits = LIMITS
    verdict_s: float = 0.0
    surplus_signals: int = 0
    """How many values of each signal are too many."""
    fails_at: int = 0
    """Number of the Check, from 1, whose verdict fails."""
    failure: OutriderError = field(default_factory=OutriderError)
    checks: list[Check] = field(default_factory=list)
    openings: list[VerifyOpen] = field(default_factory=list)
    streams: list[FakeVerifyStream] = field(default_factory=list)

    async def open(self, message: VerifyOpen, timeout_s: float) -> FakeVerifyStream:
        assert timeout_s > 0
        self.openings.append(message)
        self.streams.append(FakeVerifyStream(self, message))
        return self.streams[-1]


class FakeDraftStream:
    def __init__(self, draft: "FakeDraft", opening: DraftOpen) -> None:
        self._draft = draft
        self._committed = list(opening.prompt_token_ids)
        self._opening = opening
        self._advance: Advance | None = None
        self.closed = False

    async def advance(self, message: Advance) -> None:
        assert not self.closed
        assert message.base_len == len(self._committed)
        assert message.max_tokens <= self._draft.limits.max_chunk_tokens
        self._committed += message.committed_token_ids
        self._advance = message
        self._draft.advances.append(message)
        await self._draft.trouble("advance")

    async def drafted(self) -> Drafted:
        await self._draft.trouble("drafted")
        advance, self._advance = self._advance, None
        assert advance is not None
        base_len = len(self._committed)
        tokens = tuple(self._draft.law(base_len + index) for index in range(advance.max_tokens))
        drafted = Drafted(
            base_len=base_len,
            token_ids=tokens,
            entropies_nats=(0.5,) * len(tokens),
            laws=tuple(SparseLaw((token_id,), (1.0,)) for token_id in tokens) if self._opening.tells_laws else (),
            stop_reason=StopReason.MAX_TOKENS,
            drafted_ahead=0,
            draft_ns=7,
            draft_probs=(0.75,) * len(tokens) if self._opening.draft_probs else (),
        )
        return self._draft.spoil(drafted)

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeDraft:
    """A `DraftReplica` and the `DraftSource` that offers it, unless it is `absent`."""

    law: Law
    info: ModelInfo = DRAFT_INFO
    limits: ServiceLimits = LIMITS
    absent: bool = False
    trusted: bool = True
    fails_at: int = 0
    """Number of the Advance, from 1, that goes wrong."""
    fails_in: str = "drafted"
    failure: OutriderError | None = field(default_factory=OutriderError)
    """None: it hangs."""
    spoil: Callable[[Drafted], Drafted] = lambda drafted: drafted
    advances: list[Advance] = field(default_factory=list)
    openings: list[DraftOpen] = field(default_factory=list)
    streams: list[FakeDraftStream] = field(default_factory=list)
    reports: list[bool] = field(default_factory=list)
    opened_s: list[float] = field(default_factory=list)

    def pick(self) -> "FakeDraft | None":
        return None if self.absent else self

    def report(self, *, well: bool) -> None:
        self.reports.append(well)
        self.trusted = well

    async def open(self, message: DraftOpen, timeout_s: float) -> FakeDraftStream:
        assert timeout_s > 0
        self.openings.append(message)
        self.opened_s.append(time.monotonic())
        if self.fails_in == "open":
            await self._fail()
        self.streams.append(FakeDraftStream(self, message))
        return self.streams[-1]

    async def trouble(self, place: str) -> None:
        if self.fails_in == place and len(self.advances) == self.fails_at:
            await self._fail()

    async def _fail(self) -> None:
        if self.failure is None:
            await asyncio.Event().wait()
        else:
            raise self.failure


@dataclass
class FakePolicy(ChunkPolicy):
    """Always the same plan; remembers what it was told."""

    max_tokens: int
    stop_entropy_nats: float | None = None
    stop_prob: float | None = None
    stop_survival: float | None = None
    signals: frozenset[Signal] = frozenset()
    states: list[PlanState] = field(default_factory=list)
    outcomes: list[RoundOutcome] = field(default_factory=list)

    @property
    def wanted_signals(self) -> frozenset[Signal]:
        return self.signals

    def snapshot(self) -> dict[str, float]:
        return {"rounds": float(len(self.outcomes))}

    def plan(self, state: PlanState) -> ChunkPlan:
        self.states.append(state)
        return ChunkPlan(self.max_tokens, self.stop_entropy_nats, self.stop_prob, self.stop_survival)

    def observe(self, outcome: RoundOutcome) -> None:
        self.outcomes.append(outcome)
