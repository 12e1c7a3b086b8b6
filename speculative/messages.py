"""The protocol's messages as plain values (docs/protocol.md): what services and controller compute with.

Invariant: both services hold the same committed prefix; every message names the prefix length it assumes.
rpc/codec.py converts to and from the wire.
"""

import enum
from dataclasses import dataclass

from speculative.sampling.types import AcceptanceRule, SamplingParams, SparseLaw


class StopReason(enum.Enum):
    """Why a chunk ended."""

    MAX_TOKENS = "max_tokens"
    ENTROPY = "entropy"
    END_OF_SEQUENCE = "end_of_sequence"
    CONTEXT = "context"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a service says of its model; `vocab_size` counts real ids only, without padding rows."""

    name: str
    revision: str
    vocab_size: int
    vocab_fingerprint: str
    context_length: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    device: str


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """What a service accepts."""

    max_chunk_tokens: int
    max_sessions: int
    max_message_bytes: int


@dataclass(frozen=True, slots=True)
class DraftOpen:
    """Starts a draft session on the committed prefix `prompt_token_ids`."""

    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    distribution: bool = False


@dataclass(frozen=True, slots=True)
class Advance:
    """Commits tokens behind the first `base_len` and asks for up to `max_tokens` more."""

    base_len: int
    committed_token_ids: tuple[int, ...]
    max_tokens: int
    stop_entropy_nats: float | None = None


@dataclass(frozen=True, slots=True)
class Drafted:
    """A chunk that continues a committed prefix of `base_len` tokens."""

    base_len: int
    token_ids: tuple[int, ...]
    entropies_nats: tuple[float, ...]
    laws: tuple[SparseLaw, ...]
    stop_reason: StopReason
    drafted_ahead: int
    draft_ns: int


@dataclass(frozen=True, slots=True)
class VerifyOpen:
    """Starts a verifier session on the committed prefix `prompt_token_ids`."""

    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    acceptance: AcceptanceRule = AcceptanceRule.COUPLED


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
