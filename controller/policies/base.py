"""The seam every chunk-length policy fits into.

A policy is pure: no clock, no randomness of its own, no I/O, no torch. One instance serves one request. Before each
round the loop asks `plan`; after it, it reports with `observe`. Whatever a policy answers changes speed, never output.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PlanState:
    """What is known before a round."""

    committed_len: int
    """Tokens committed, prompt included."""
    remaining_tokens: int
    """Tokens the request may still generate."""
    max_draft_tokens: int
    """Hard limit of a chunk: the smallest of request, server, draft and verifier."""


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """How far to draft: at most `max_tokens`, stopping behind a token of more than `stop_entropy_nats`."""

    max_tokens: int
    stop_entropy_nats: float | None = None


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What a round brought. The first rejected position, if there is one, has index `accepted_len`."""

    drafted_len: int
    accepted_len: int
    entropies_nats: tuple[float, ...]
    """Entropy of the draft's warped law at each drafted token."""
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

    @property
    def rejected(self) -> bool:
        """Whether a drafted token was rejected."""
        return self.accepted_len < self.drafted_len


class ChunkPolicy(Protocol):
    """Sets the chunk length of one request, round by round."""

    def plan(self, state: PlanState) -> ChunkPlan:
        """The plan of the next round; `max_tokens` 0 asks for one plain step of the target."""
        ...

    def observe(self, outcome: RoundOutcome) -> None:
        """Learns from a round."""
        ...
