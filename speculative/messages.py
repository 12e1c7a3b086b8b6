"""The protocol's messages as plain values (docs/protocol.md): what services and controller compute with.

Invariant: both services hold the same committed prefix; every message names the prefix length it assumes.
rpc/codec.py converts to and from the wire.
"""

import enum
from dataclasses import dataclass

from speculative.sampling.types import (
    NO_SIGNALS,
    PAPERS_ADASD,
    AcceptanceRule,
    AdasdOptions,
    SamplingParams,
    Signal,
    Signals,
    SparseLaw,
)


class StopReason(enum.Enum):
    """Why a chunk ended."""

    MAX_TOKENS = "max_tokens"
    ENTROPY = "entropy"
    PROBABILITY = "probability"
    SURVIVAL = "survival"
    END_OF_SEQUENCE = "end_of_sequence"
    CONTEXT = "context"
    NO_MATCH = "no_match"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a service says of its model; `vocab_size` counts real ids only, without padding rows.

    An empty `vocab_fingerprint` belongs to a draft without a model: it proposes only ids that it was sent.
    """

    name: str
    revision: str
    vocab_size: int
    vocab_fingerprint: str
    context_length: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    device: str

    @property
    def fits_any_vocabulary(self) -> bool:
        """Whether it works with ids of any vocabulary; a draft only."""
        return not self.vocab_fingerprint


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """What a service accepts."""

    max_chunk_tokens: int
    max_sessions: int
    max_message_bytes: int


@dataclass(frozen=True, slots=True)
class DraftOpen:
    """Starts a draft session on the committed prefix `prompt_token_ids`.

    `acceptance` alone decides how tokens are drawn; `distribution` and `draft_probs` only what is told of them.
    `lookup`: tokens that followed an earlier occurrence of the prefix's end are proposed first.
    """

    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    distribution: bool = False
    acceptance: AcceptanceRule = AcceptanceRule.COUPLED
    draft_probs: bool = False
    lookup: bool = False

    @property
    def tells_laws(self) -> bool:
        """Whether each Drafted carries laws."""
        return self.distribution or self.acceptance.needs_laws

    @property
    def draws_from_laws(self) -> bool:
        """Whether tokens are drawn from the laws that are sent; at temperature 0 nothing is drawn."""
        return self.acceptance.needs_laws and not self.sampling.greedy


@dataclass(frozen=True, slots=True)
class Advance:
    """Commits tokens behind the first `base_len` and asks for up to `max_tokens` more.

    Of looked-up tokens it asks for up to `max_lookup_tokens`, more or fewer; None: for `max_tokens` too.
    """

    base_len: int
    committed_token_ids: tuple[int, ...]
    max_tokens: int
    stop_entropy_nats: float | None = None
    stop_prob: float | None = None
    stop_survival: float | None = None
    max_lookup_tokens: int | None = None

    @property
    def most_looked_up(self) -> int:
        """Most tokens that may be looked up."""
        return self.max_tokens if self.max_lookup_tokens is None else self.max_lookup_tokens

    @property
    def longest_chunk(self) -> int:
        """Most tokens of the answer."""
        return max(self.max_tokens, self.most_looked_up)

    @property
    def stops_by_prob(self) -> bool:
        """Whether a stop rule looks at the drawn tokens' probabilities."""
        return self.stop_prob is not None or self.stop_survival is not None


@dataclass(frozen=True, slots=True)
class Drafted:
    """A chunk that continues a committed prefix of `base_len` tokens.

    `draft_probs` are the tokens' probabilities in the draft's warped law (at temperature 0 in its plain softmax); empty
    unless the session or a stop rule wants them. The first `looked_up` tokens were looked up, not drawn: their law is
    one-hot, their entropy 0, their probability 1.
    """

    base_len: int
    token_ids: tuple[int, ...]
    entropies_nats: tuple[float, ...]
    laws: tuple[SparseLaw, ...]
    stop_reason: StopReason
    drafted_ahead: int
    draft_ns: int
    draft_probs: tuple[float, ...] = ()
    looked_up: int = 0


@dataclass(frozen=True, slots=True)
class VerifyOpen:
    """Starts a verifier session on the committed prefix `prompt_token_ids`; `adasd` matters for that rule only."""

    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    acceptance: AcceptanceRule = AcceptanceRule.COUPLED
    wanted_signals: frozenset[Signal] = frozenset()
    adasd: AdasdOptions = PAPERS_ADASD

    @property
    def needs_laws(self) -> bool:
        """Whether every Check must carry the draft's laws."""
        return self.acceptance.needs_laws or any(signal.compares_laws for signal in self.wanted_signals)


@dataclass(frozen=True, slots=True)
class Check:
    """Asks for a verdict on draft tokens that continue a committed prefix of `base_len` tokens."""

    base_len: int
    draft_token_ids: tuple[int, ...]
    laws: tuple[SparseLaw, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Commits `accepted_len` draft tokens and `next_token_id` behind `base_len` tokens."""

    base_len: int
    accepted_len: int
    next_token_id: int
    queue_ns: int
    forward_ns: int
    batch_size: int
    queue_len: int
    signals: Signals = NO_SIGNALS
