"""Drafting: per session, the committed prefix and the tokens guessed behind it (docs/protocol.md, "Drafting").

Invariant: between two Advances the engine's session holds the committed prefix and behind it the tokens of the last
chunk; `committed_len` of them are final. A committed prefix that reaches the draft's context window can only be
counted, no longer continued: such a session holds no memory and answers empty chunks, so that the stream goes on with
the target alone.

Where the committed prefix ends as it did before, the tokens that followed then are proposed first (lookup.py), without
the engine; the model drafts where there are none, and behind them where there are few. Its cache stays behind
meanwhile, and catches up in the step of its next token.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from draft_service.chunk import DraftJob, DraftToken, as_drafted, wants_probs
from draft_service.lookup import LookupIndex
from speculative.engine.prefill import Prefill
from speculative.engine.session import Session
from speculative.engine.worker import Engine
from speculative.errors import StalePrefixError
from speculative.messages import Advance, Drafted, DraftOpen, ModelInfo, StopReason
from speculative.sampling.types import SamplingParams

LOOKUP_ALONE_TOKENS = 4
"""From how many looked-up tokens on the model does not draft behind them.

The model's tokens count only if all those before them stand. If a looked-up token stands with chance 0.7 and a drafted
one with 0.4, a first one behind four others brings 0.1 tokens, about what a draft step costs of a round; behind two it
brings 0.2. So short proposals gain from the model, and only they make the round wait for it.
"""
_PIECE_TOKENS = 1024
"""Tokens of a prompt that are indexed before others get their turn: about two milliseconds, five on a busy machine."""


class Drafter:
    """Drafts on one engine, for many sessions at once."""

    def __init__(
        self,
        engine: Engine,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        lookup_alone_tokens: int = LOOKUP_ALONE_TOKENS,
    ) -> None:
        self._engine = engine
        self._clock_ns = clock_ns
        self._lookup_alone_tokens = lookup_alone_tokens

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
        session = DraftSession(self._engine, opening, self._clock_ns, self._lookup_alone_tokens)
        try:
            await session.prefill()
            yield session
        finally:
            session.close()


class DraftSession:
    """One committed prefix, and what was last drafted behind it."""

    def __init__(
        self,
        engine: Engine,
        opening: DraftOpen,
        clock_ns: Callable[[], int],
        lookup_alone_tokens: int = LOOKUP_ALONE_TOKENS,
    ) -> None:
        self._engine = engine
        self._opening = opening
        self._clock_ns = clock_ns
        self._lookup_alone_tokens = lookup_alone_tokens
        self._committed_len = len(opening.prompt_token_ids)
        fits = self._committed_len < engine.info.context_length
        self._held: Session | None = engine.open(opening.prompt_token_ids) if fits else None
        self._index: LookupIndex | None = LookupIndex() if fits and opening.lookup else None

    async def prefill(self) -> None:
        """Puts the prompt into the index and the cache."""
        if self._index is not None:
            await fill(self._index, self._opening.prompt_token_ids)
        if self._held is not None:
            await self._engine.run(Prefill(self._held))

    def close(self) -> None:
        """Frees everything; harmless if repeated."""
        self._index = None
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
        looked_up = self._look_up(advance)
        drafted, reason = await self._draft(advance, looked_up)
        tokens = [*looked_up, *drafted]
        return as_drafted(self._committed_len, tokens, len(looked_up), reason, self._clock_ns() - started_ns)

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
        if self._index is not None:
            self._index.extend(self._held.token_ids[len(self._index.token_ids) :])

    def _repeats(self, advance: Advance, end: int) -> bool:
        """Whether the Advance commits tokens that are the end of the committed prefix already."""
        if end != self._committed_len:
            return False
        held = self._held
        return held is None or tuple(held.token_ids[advance.base_len : end]) == advance.committed_token_ids

    def _look_up(self, advance: Advance) -> list[DraftToken]:
        """The tokens that the committed prefix itself proposes, to the first that ends a sequence."""
        if self._index is None:
            return []
        room = self._engine.info.context_length - self._committed_len
        proposed = self._index.propose(min(advance.most_looked_up, room))
        ends = (index + 1 for index, one in enumerate(proposed) if one in self._engine.info.eos_token_ids)
        return as_looked_up(proposed[: next(ends, len(proposed))], self._opening, advance)

    async def _draft(
        self, advance: Advance, looked_up: Sequence[DraftToken]
    ) -> tuple[Sequence[DraftToken], StopReason]:
        """What the model drafts behind the looked-up tokens, and why the chunk ends."""
        held, info = self._held, self._engine.info
        if held is None or self._committed_len + len(looked_up) == info.context_length:
            return (), StopReason.CONTEXT
        if looked_up and looked_up[-1].token_id in info.eos_token_ids:
            return (), StopReason.END_OF_SEQUENCE
        if len(looked_up) >= min(advance.max_tokens, self._lookup_alone_tokens if looked_up else advance.max_tokens):
            return (), StopReason.MAX_TOKENS
        held.token_ids += [token.token_id for token in looked_up]
        job = DraftJob(held, self._opening, info, advance, len(looked_up))
        await self._engine.run(job)
        return job.drafted, job.stop_reason


async def fill(index: LookupIndex, token_ids: Sequence[int]) -> None:
    """Indexes a prompt, with a turn for others between pieces."""
    for start in range(0, len(token_ids), _PIECE_TOKENS):
        index.extend(token_ids[start : start + _PIECE_TOKENS])
        await asyncio.sleep(0)


def as_looked_up(token_ids: Sequence[int], opening: DraftOpen, advance: Advance) -> list[DraftToken]:
    """Looked-up tokens with what the session wants to be told of its tokens."""
    with_prob = wants_probs(opening, advance)
    return [DraftToken.looked_up(one, with_law=opening.tells_laws, with_prob=with_prob) for one in token_ids]


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
