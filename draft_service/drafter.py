"""Drafting: per session, the committed prefix and the tokens guessed behind it (docs/protocol.md, "Drafting").

Invariant: between two Advances the engine's session holds the committed prefix and behind it the tokens of the last
chunk; `committed_len` of them are final. A committed prefix that reaches the draft's context window can only be
counted, no longer continued: such a session holds no memory and answers empty chunks, so that the stream goes on with
the target alone.
"""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from speculative.engine.interface import Draw, DrawRequest, PickRequest, Picks, RowOutcome, RowRequest
from speculative.engine.prefill import Prefill
from speculative.engine.session import Session
from speculative.engine.worker import Engine
from speculative.errors import StalePrefixError
from speculative.messages import Advance, Drafted, DraftOpen, ModelInfo, StopReason
from speculative.sampling import distribution
from speculative.sampling.types import SamplingParams, SparseLaw


class Drafter:
    """Drafts on one engine, for many sessions at once."""

    def __init__(self, engine: Engine, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._engine = engine
        self._clock_ns = clock_ns

    @property
    def info(self) -> ModelInfo:
        """The draft model."""
        return self._engine.info

    async def warm_up(self) -> None:
        """One small chunk, so that the first request does not pay for what is set up on first use."""
        opening = DraftOpen(prompt_token_ids=(0,), sampling=SamplingParams(), seed=0)
        async with self.session(opening) as session:
            await session.advance(Advance(base_len=1, committed_token_ids=(), max_tokens=1))

    @asynccontextmanager
    async def session(self, opening: DraftOpen) -> AsyncIterator["DraftSession"]:
        """A session for the length of the block; the prompt is processed on entry.

        Whatever ends the block, also a cancellation, frees everything the session holds. Raises CapacityError.
        """
        session = DraftSession(self._engine, opening, self._clock_ns)
        try:
            await session.prefill()
            yield session
        finally:
            session.close()


class DraftSession:
    """One committed prefix, and what was last drafted behind it."""

    def __init__(self, engine: Engine, opening: DraftOpen, clock_ns: Callable[[], int]) -> None:
        self._engine = engine
        self._opening = opening
        self._clock_ns = clock_ns
        self._committed_len = len(opening.prompt_token_ids)
        fits = self._committed_len < engine.info.context_length
        self._held: Session | None = engine.open(opening.prompt_token_ids) if fits else None

    async def prefill(self) -> None:
        """Puts the prompt into the cache."""
        if self._held is not None:
            await self._engine.run(Prefill(self._held))

    def close(self) -> None:
        """Frees everything; harmless if repeated."""
        if self._held is not None:
            self._engine.close(self._held)
            self._held = None

    async def advance(self, advance: Advance) -> Drafted:
        """Commits tokens and drafts a chunk behind them. An Advance that is repeated gets the same chunk.

        Raises StalePrefixError unless `base_len` is the committed length, or the session holds the committed tokens of
        the Advance already.
        """
        started_ns = self._clock_ns()
        self._commit(advance)
        tokens, reason = await self._draft(advance)
        return Drafted(
            base_len=self._committed_len,
            token_ids=tuple(token.token_id for token in tokens),
            entropies_nats=tuple(token.entropy_nats for token in tokens),
            laws=tuple(token.law for token in tokens if token.law is not None),
            stop_reason=reason,
            drafted_ahead=0,
            draft_ns=self._clock_ns() - started_ns,
            draft_probs=tuple(token.prob for token in tokens if token.prob is not None),
        )

    def _commit(self, advance: Advance) -> None:
        """Makes the committed prefix end with the Advance's tokens, keeping of the cache what agrees with them."""
        end = advance.base_len + len(advance.committed_token_ids)
        if advance.base_len != self._committed_len and not self._repeats(advance, end):
            raise StalePrefixError(advance.base_len, self._committed_len)
        self._committed_len = end
        if self._held is None:
            return
        if end >= self._engine.info.context_length:
            self.close()
            return
        _replace_tail(self._held, advance.base_len, advance.committed_token_ids)

    def _repeats(self, advance: Advance, end: int) -> bool:
        """Whether the Advance commits tokens that are the end of the committed prefix already."""
        if end != self._committed_len:
            return False
        held = self._held
        return held is None or tuple(held.token_ids[advance.base_len : end]) == advance.committed_token_ids

    async def _draft(self, advance: Advance) -> tuple[Sequence["DraftToken"], StopReason]:
        if self._held is None:
            return (), StopReason.CONTEXT
        if advance.max_tokens == 0:
            return (), StopReason.MAX_TOKENS
        job = DraftJob(self._held, self._opening, self._engine.info, advance)
        await self._engine.run(job)
        return job.drafted, job.stop_reason


def _replace_tail(session: Session, base_len: int, token_ids: Sequence[int]) -> None:
    """Makes `token_ids` what follows the first `base_len` tokens, and commits them.

    What was drafted and agrees stays in the cache. After a chunk that was accepted whole, the cache is one token behind
    the draft's own: the chunk's last token was drawn, but never fed. It is fed now, with the bonus token behind it.
    """
    drafted = session.token_ids[base_len:]
    agreeing = next(
        (index for index, (one, other) in enumerate(zip(drafted, token_ids, strict=False)) if one != other),
        min(len(drafted), len(token_ids)),
    )
    session.roll_back(base_len + agreeing)
    session.token_ids.extend(token_ids[agreeing:])
    session.committed_len = len(session.token_ids)
    session.cached_len = min(session.cached_len, len(session.token_ids) - 1)  # the law behind the last one is wanted


@dataclass(frozen=True, slots=True)
class DraftToken:
    """A drafted token; its draft law and its probability in that, if they are wanted."""

    token_id: int
    entropy_nats: float
    law: SparseLaw | None = None
    prob: float | None = None


@dataclass(slots=True, eq=False)
class DraftJob:
    """Drafts a chunk of at least one token, one token a step.

    It ends after a token that ends a sequence, at which a stop rule of `advance` fires (entropy, probability,
    survival), that is the last one asked for, or behind which the context is full; the first of these in this order is
    the reason. The token stays in the chunk in any case: dropping it after it was drawn would bias the output.
    """

    session: Session
    opening: DraftOpen
    info: ModelInfo
    advance: Advance
    drafted: list[DraftToken] = field(default_factory=list)
    stop_reason: StopReason = StopReason.MAX_TOKENS
    survival: float = 1.0
    """Product of the drafted tokens' probabilities."""

    @property
    def _wants_probs(self) -> bool:
        return self.opening.draft_probs or self.advance.stops_by_prob

    @property
    def extra_token_ids(self) -> tuple[int, ...]:
        """None: what is drafted belongs to the session."""
        return ()

    @property
    def num_rows(self) -> int:
        """The law behind the last token."""
        return 1

    def request(self, first_row: int) -> RowRequest:
        """The next token: the shared race's pick, or a draw from a law that is sent along."""
        position, opening = len(self.session.token_ids), self.opening
        if opening.draws_from_laws:
            return DrawRequest(first_row, position, self.session.committed_len, opening.sampling, opening.seed)
        return PickRequest(
            first_row,
            1,
            position,
            opening.sampling,
            opening.seed,
            want_entropy=True,
            want_prob=self._wants_probs,
            want_law=opening.tells_laws,
        )

    def consume(self, outcome: RowOutcome | None) -> bool:
        """Takes the token; True when the chunk ends with it."""
        token = self._token_of(outcome)
        self.drafted.append(token)
        if token.prob is not None:
            self.survival *= token.prob
        self.session.token_ids.append(token.token_id)
        self.session.cached_len = len(self.session.token_ids) - 1
        reason = self._reason_to_stop(token)
        if reason is not None:
            self.stop_reason = reason
        return reason is not None

    def _reason_to_stop(self, token: DraftToken) -> StopReason | None:
        if token.token_id in self.info.eos_token_ids:
            return StopReason.END_OF_SEQUENCE
        if reason := self._fired_rule(token):
            return reason
        if len(self.drafted) == self.advance.max_tokens:
            return StopReason.MAX_TOKENS
        if len(self.session.token_ids) == self.info.context_length:
            return StopReason.CONTEXT
        return None

    def _fired_rule(self, token: DraftToken) -> StopReason | None:
        advance = self.advance
        if advance.stop_entropy_nats is not None and token.entropy_nats > advance.stop_entropy_nats:
            return StopReason.ENTROPY
        if token.prob is None:
            return None
        if advance.stop_prob is not None and token.prob < advance.stop_prob:
            return StopReason.PROBABILITY
        if advance.stop_survival is not None and self.survival < advance.stop_survival:
            return StopReason.SURVIVAL
        return None

    def _token_of(self, outcome: RowOutcome | None) -> DraftToken:
        if isinstance(outcome, Draw):
            law, token_id = outcome.law, outcome.token_id
            prob = distribution.full_probability(law, token_id) if self._wants_probs else None
            return DraftToken(token_id, outcome.entropy_nats, law, prob)
        if isinstance(outcome, Picks):
            picked_law = outcome.laws[0] if outcome.laws else None
            prob = outcome.probs[0] if outcome.probs else None
            return DraftToken(outcome.token_ids[0], outcome.entropies_nats[0], picked_law, prob)
        raise TypeError(f"a draft step cannot end in {outcome!r}")
