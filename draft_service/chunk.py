"""A chunk under way: what is known of a drafted token, and the job that drafts one token a step on the engine."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from speculative.engine.interface import Draw, DrawRequest, PickRequest, Picks, RowOutcome, RowRequest
from speculative.engine.session import Session
from speculative.messages import Advance, Drafted, DraftOpen, ModelInfo, StopReason
from speculative.sampling import distribution
from speculative.sampling.types import SparseLaw


def wants_probs(opening: DraftOpen, advance: Advance) -> bool:
    """Whether the tokens' probabilities are sent: the session or a stop rule looks at them."""
    return opening.draft_probs or advance.stops_by_prob


def as_drafted(
    base_len: int, tokens: Sequence["DraftToken"], looked_up: int, reason: StopReason, draft_ns: int
) -> Drafted:
    """The answer to an Advance."""
    return Drafted(
        base_len=base_len,
        token_ids=tuple(token.token_id for token in tokens),
        entropies_nats=tuple(token.entropy_nats for token in tokens),
        laws=tuple(token.law for token in tokens if token.law is not None),
        stop_reason=reason,
        drafted_ahead=0,
        draft_ns=draft_ns,
        draft_probs=tuple(token.prob for token in tokens if token.prob is not None),
        looked_up=looked_up,
    )


@dataclass(frozen=True, slots=True)
class DraftToken:
    """A drafted token; its draft law and its probability in that, if they are wanted."""

    token_id: int
    entropy_nats: float
    law: SparseLaw | None = None
    prob: float | None = None

    @classmethod
    def looked_up(cls, token_id: int, *, with_law: bool, with_prob: bool) -> "DraftToken":
        """A token that no model drew: its law is one-hot on it, since the committed prefix alone determines it."""
        law = distribution.one_hot(token_id) if with_law else None
        return cls(token_id, entropy_nats=0.0, law=law, prob=1.0 if with_prob else None)


@dataclass(slots=True, eq=False)
class DraftJob:
    """Drafts at least one token, one token a step, behind the `num_before` tokens that the chunk has already.

    It ends after a token that ends a sequence, at which a stop rule of `advance` fires (entropy, probability,
    survival), that is the last one asked for, or behind which the context is full; the first of these in this order is
    the reason. The token stays in the chunk in any case: dropping it after it was drawn would bias the output.
    """

    session: Session
    opening: DraftOpen
    info: ModelInfo
    advance: Advance
    num_before: int = 0
    drafted: list[DraftToken] = field(default_factory=list)
    stop_reason: StopReason = StopReason.MAX_TOKENS
    survival: float = 1.0
    """Product of the drafted tokens' probabilities."""

    @property
    def _wants_probs(self) -> bool:
        return wants_probs(self.opening, self.advance)

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
        if self.num_before + len(self.drafted) == self.advance.max_tokens:
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
