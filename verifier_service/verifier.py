"""Verification: per session, the committed prefix and the verdict on each chunk (docs/protocol.md, "Verifying").

Invariant: between two Checks the engine's session holds exactly the committed prefix, all of it but the last token
cached. That last token is the target's own, drawn but not fed; the next Check feeds it with the chunk behind it.

Room: a sequence has at most `context_length` tokens, prompt included. A verdict always adds one token, so a prompt of
`context_length` tokens cannot be answered and one of `context_length - 1` tokens gets exactly one; a chunk of k tokens
needs k + 1 places behind the committed prefix. What does not fit raises ContextLengthError before any work.
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from speculative.engine.interface import Judgement, JudgeRequest, PickRequest, Picks, RowOutcome, RowRequest
from speculative.engine.prefill import Prefill
from speculative.engine.session import Session
from speculative.engine.worker import Engine
from speculative.errors import ContextLengthError, InvalidRequestError, StalePrefixError
from speculative.messages import Check, ModelInfo, Verdict, VerifyOpen
from speculative.sampling import distribution
from speculative.sampling.acceptance import coupled_accepted_len
from speculative.sampling.adasd import Adasd
from speculative.sampling.types import NO_SIGNALS, AcceptanceRule, SamplingParams, Signal, Signals


class Verifier:
    """Verifies on one engine, for many sessions at once."""

    def __init__(
        self, engine: Engine, tokenizer_files: Mapping[str, bytes], clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._engine = engine
        self._clock_ns = clock_ns
        self.tokenizer_files = tokenizer_files

    @property
    def info(self) -> ModelInfo:
        """The target model."""
        return self._engine.info

    async def warm_up(self) -> None:
        """One plain step, so that the first request does not pay for what is set up on first use."""
        opening = VerifyOpen(prompt_token_ids=(0,), sampling=SamplingParams(), seed=0)
        async with self.session(opening) as session:
            await session.check(Check(base_len=1, draft_token_ids=()))

    @asynccontextmanager
    async def session(self, opening: VerifyOpen) -> AsyncIterator["VerifySession"]:
        """A session for the length of the block; the prompt is processed on entry.

        Whatever ends the block, also a cancellation, frees everything the session holds. Raises CapacityError, and
        ContextLengthError when the prompt leaves no room for a token.
        """
        held = self._engine.open(opening.prompt_token_ids)
        try:
            await self._engine.run(Prefill(held))
            yield VerifySession(self._engine, held, opening)
        finally:
            self._engine.close(held)


class VerifySession:
    """One committed prefix, and the last verdict."""

    def __init__(self, engine: Engine, held: Session, opening: VerifyOpen) -> None:
        self._engine = engine
        self._held = held
        self._opening = opening
        lossy = opening.acceptance is AcceptanceRule.ADASD
        self._adasd = Adasd(opening.adasd, raw=opening.sampling.greedy) if lossy else None
        self._last: tuple[Check, Verdict] | None = None

    async def check(self, check: Check) -> Verdict:
        """Judges a chunk and commits what stands of it and one token more. The last Check, repeated, gets the same.

        Raises StalePrefixError when `base_len` is not the committed length, ContextLengthError when there is no room,
        InvalidRequestError when the rule or a signal needs laws that are missing, or a law that the rule judges by
        cannot have produced its token.
        """
        if self._last is not None and self._last[0] == check:
            return self._last[1]
        self._examine(check)
        job = VerifyJob(self._held, check, self._opening, self._adasd)
        times = await self._engine.run(job)
        verdict = Verdict(
            base_len=check.base_len,
            accepted_len=job.accepted_len,
            next_token_id=self._held.token_ids[-1],
            queue_ns=times.queue_ns,
            forward_ns=times.forward_ns,
            batch_size=times.batch_size,
            queue_len=times.queue_len,
            signals=job.signals,
        )
        self._last = (check, verdict)
        return verdict

    def _examine(self, check: Check) -> None:
        if check.base_len != self._held.committed_len:
            raise StalePrefixError(check.base_len, self._held.committed_len)
        needed_len = check.base_len + len(check.draft_token_ids) + 1
        if needed_len > self._engine.info.context_length:
            raise ContextLengthError(needed_len, self._engine.info.context_length)
        if self._opening.needs_laws and len(check.laws) != len(check.draft_token_ids):
            raise InvalidRequestError(
                "check.distributions", "REJECTION, ADASD, KL and JS_DISTANCE need the law of every draft token"
            )
        if self._opening.acceptance.needs_laws:
            for index, (token_id, law) in enumerate(zip(check.draft_token_ids, check.laws, strict=True)):
                distribution.check_drawn(token_id, law, f"check.distributions[{index}]")


@dataclass(slots=True, eq=False)
class VerifyJob:
    """Judges a chunk in one step: feeds the committed tokens that are not cached and the chunk, wants k + 1 rows."""

    session: Session
    chunk: Check
    opening: VerifyOpen
    adasd: Adasd | None = None
    """The session's own, if its rule is ADASD."""
    accepted_len: int = 0
    signals: Signals = NO_SIGNALS

    @property
    def extra_token_ids(self) -> tuple[int, ...]:
        """The chunk; it does not belong to the session unless it stands."""
        return self.chunk.draft_token_ids

    @property
    def num_rows(self) -> int:
        """One law for each draft token and one behind them."""
        return len(self.chunk.draft_token_ids) + 1

    def request(self, first_row: int) -> RowRequest:
        """The target's own picks at all positions, or a judgement by the draft's laws."""
        opening, chunk = self.opening, self.chunk
        if opening.acceptance.needs_laws:
            return JudgeRequest(
                first_row,
                chunk.base_len,
                chunk.draft_token_ids,
                chunk.laws,
                opening.sampling,
                opening.seed,
                signals=self._signals,
                adasd=self.adasd,
            )
        return PickRequest(
            first_row,
            self.num_rows,
            chunk.base_len,
            opening.sampling,
            opening.seed,
            draft_laws=chunk.laws if self._signals else (),
            signals=self._signals,
        )

    @property
    def _signals(self) -> frozenset[Signal]:
        """What is to be told of the draft tokens."""
        return self.opening.wanted_signals if self.chunk.draft_token_ids else frozenset()

    def consume(self, outcome: RowOutcome | None) -> bool:
        """Commits what stands and the token behind it; what was rejected stays behind `cached_len` as garbage."""
        judgement = self._judgement(outcome)
        self.accepted_len = judgement.accepted_len
        self.signals = judgement.signals
        session = self.session
        session.token_ids.extend(self.chunk.draft_token_ids[: judgement.accepted_len])
        session.cached_len = len(session.token_ids)
        session.token_ids.append(judgement.next_token_id)
        session.committed_len = len(session.token_ids)
        return True

    def _judgement(self, outcome: RowOutcome | None) -> Judgement:
        if isinstance(outcome, Judgement):
            return outcome
        if isinstance(outcome, Picks):
            accepted_len = coupled_accepted_len(self.chunk.draft_token_ids, outcome.token_ids)
            return Judgement(accepted_len, outcome.token_ids[accepted_len], outcome.signals)
        raise TypeError(f"a verification cannot end in {outcome!r}")
