"""The seam every chunk-length policy fits into.

A policy is pure: no clock, no randomness of its own, no I/O, no torch. One instance serves one request. Before each
round the loop asks `plan`; after it, it reports with `observe`. Whatever a policy answers changes speed, never output:
a stop rule either looks only at what is known before a token is drawn (entropy), or lets the drawn token be sent
(probability), so that every drawn token is judged.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from speculative.sampling.types import Signal

__all__ = ["ChunkPlan", "ChunkPolicy", "PlanState", "RoundOutcome", "Signal"]


@dataclass(frozen=True, slots=True)
class PlanState:
    """What is known before a round."""

    committed_len: int
    """Tokens committed, prompt included."""
    remaining_tokens: int
    """Tokens the request may still generate."""
    max_draft_tokens: int
    """Hard limit of a chunk: the smallest of request, server, draft and verifier."""
    temperature: float = 1.0
    """Sampling temperature of the request."""

    @property
    def limit(self) -> int:
        """Longest chunk of use: within the hard limit, and leaving one token for the target's own."""
        return max(0, min(self.max_draft_tokens, self.remaining_tokens - 1))


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """How far to draft: at most `max_tokens`, less where a stop rule fires. A rule that is None never fires.

    The draft service applies the rules behind each token it drew; the token that fires one is kept and sent, and is
    the last of the chunk.
    """

    max_tokens: int
    stop_entropy_nats: float | None = None
    """Stops behind a token whose warped draft law has more entropy than this."""
    stop_prob: float | None = None
    """Stops behind a token whose own probability in the warped draft law is less than this."""
    stop_survival: float | None = None
    """Stops behind a token at which the product of those probabilities over the chunk so far is less than this."""


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What a round brought. The first rejected position, if there is one, has index `accepted_len`.

    Signals have one entry for each drafted token, those behind the first rejection too; empty when not wanted.
    """

    drafted_len: int
    accepted_len: int
    entropies_nats: tuple[float, ...]
    """Entropy of the draft's warped law at each drafted token (of its plain softmax when greedy)."""
    draft_ns: int
    """Draft service's own time for the chunk."""
    queue_ns: int
    """Verifier's queueing time."""
    forward_ns: int
    """Verifier's forward time."""
    round_ns: int
    """The whole round as the controller saw it."""
    batch_size: int
    """Sessions in the verifier's batch."""
    draft_probs: tuple[float, ...] = ()
    """Probability of each drafted token in the draft's warped law (in its plain softmax when greedy)."""
    kl_nats: tuple[float, ...] = ()
    """KL(target || draft) at each drafted token."""
    js_distance: tuple[float, ...] = ()
    """Square root of the base-2 Jensen-Shannon divergence of the two laws, in [0, 1], at each drafted token."""
    target_entropies_nats: tuple[float, ...] = ()
    """Entropy of the target's warped law at each drafted token."""
    looked_up_len: int = 0
    """How many of the drafted tokens, from the first on, were looked up instead of drafted by the draft's model. Only
    what a round cost and brought may be learnt from such a round, not what the model's tokens are worth."""

    @property
    def rejected(self) -> bool:
        """Whether a drafted token was rejected."""
        return self.accepted_len < self.drafted_len


class ChunkPolicy(Protocol):
    """Sets the chunk length of one request, round by round. The first two members have defaults for subclasses."""

    @property
    def wanted_signals(self) -> frozenset[Signal]:
        """The signals `observe` makes use of; it copes without them, but then decides on less."""
        return frozenset()

    def snapshot(self) -> Mapping[str, float]:
        """The numbers the next plan rests on, by name, for traces."""
        return {}

    def plan(self, state: PlanState) -> ChunkPlan:
        """The plan of the next round; `max_tokens` 0 asks for one plain step of the target."""
        ...

    def observe(self, outcome: RoundOutcome) -> None:
        """Learns from a round."""
        ...
