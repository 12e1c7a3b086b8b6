"""GenerationService's messages as plain values: what a client asks and what it is answered.

rpc/generation_codec.py converts to and from the wire; the texts of the fields are in generation_service.proto.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from speculative.messages import ModelInfo
from speculative.sampling.types import NO_SIGNALS, PAPERS_ADASD, AcceptanceRule, AdasdOptions, SamplingParams, Signals


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Plain text; the tokenizer's own special tokens are added."""

    text: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a chat."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat, oldest message first, rendered by the model's own template."""

    messages: tuple[ChatMessage, ...]


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, used as they are."""

    token_ids: tuple[int, ...]


Prompt = TextPrompt | ChatPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class StopConditions:
    """When to stop; the first condition that holds, by position, decides. `max_tokens` None: the server's default."""

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SpeculationOptions:
    """How to speculate; None: the server's default."""

    policy: str | None = None
    policy_parameters: Mapping[str, float] = field(default_factory=dict)
    max_draft_tokens: int | None = None
    acceptance: AcceptanceRule = AcceptanceRule.COUPLED
    adasd: AdasdOptions = PAPERS_ADASD
    prompt_lookup: bool | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and how to answer it; `seed` None: drawn by the server."""

    prompt: Prompt
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int | None = None
    stop: StopConditions = field(default_factory=StopConditions)
    speculation: SpeculationOptions = field(default_factory=SpeculationOptions)
    round_trace: bool = False
    round_signals: bool = False


DIFFERENT_VOCABULARIES = "have different vocabularies"
"""Part of the `speculation_off_reason` of a pair that cannot work together."""


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """What GenerationService/GetInfo tells; `draft` None while target-only, `speculation_off_reason` then says why."""

    target: ModelInfo
    draft: ModelInfo | None
    speculation_off_reason: str
    default_policy: str
    policies: tuple[str, ...]
    max_draft_tokens: int
    default_max_tokens: int


class TokenOrigin(enum.Enum):
    """Where a delivered token came from; see the glossary in sampling/acceptance.py."""

    ACCEPTED = "accepted"
    RECOVERED = "recovered"
    BONUS = "bonus"


class FinishReason(enum.Enum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Started:
    """First event: what the answer is made of. `policy` is "off" while target-only."""

    prompt_tokens: int
    seed: int
    model: str
    policy: str


@dataclass(frozen=True, slots=True)
class RoundTrace:
    """One round: a chunk and its verdict; signals that were not wanted are empty.

    The first `looked_up` draft tokens were looked up, not drafted by a model.
    """

    base_len: int
    draft_token_ids: tuple[int, ...]
    draft_entropies_nats: tuple[float, ...]
    max_tokens: int
    stop_entropy_nats: float | None
    accepted_len: int
    draft_ns: int
    queue_ns: int
    forward_ns: int
    round_ns: int
    batch_size: int
    next_token_id: int = 0
    draft_probs: tuple[float, ...] = ()
    signals: Signals = NO_SIGNALS
    stop_prob: float | None = None
    stop_survival: float | None = None
    policy_state: Mapping[str, float] = field(default_factory=dict)
    looked_up: int = 0


@dataclass(frozen=True, slots=True)
class Delta:
    """New text, the tokens it came from, and for each the length in UTF-8 bytes of `text` finished with it."""

    text: str
    token_ids: tuple[int, ...] = ()
    token_origins: tuple[TokenOrigin, ...] = ()
    text_ends: tuple[int, ...] = ()
    round: RoundTrace | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts; `completion_tokens` are those delivered."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """How an answer was made. delivered = accepted + recovered + bonus, counted on delivered tokens only.

    `accepted_histogram[n]` is the number of rounds in which the verifier accepted n draft tokens, delivered or not.
    `lossy`: draft tokens were judged by a rule that does not keep the target's law. `looked_up` of the drafted tokens
    were looked up, and the verifier accepted `looked_up_accepted` of those, delivered or not.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    recovered: int = 0
    bonus: int = 0
    accepted_histogram: tuple[int, ...] = ()
    first_token_ns: int = 0
    total_ns: int = 0
    draft_wait_ns: int = 0
    verify_wait_ns: int = 0
    acceptance: AcceptanceRule = AcceptanceRule.COUPLED
    lossy: bool = False
    looked_up: int = 0
    looked_up_accepted: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """Last event: why and how the answer ended."""

    reason: FinishReason
    matched_stop: str | None
    matched_token_id: int | None
    usage: Usage
    statistics: Statistics


GenerationEvent = Started | Delta | Finished
