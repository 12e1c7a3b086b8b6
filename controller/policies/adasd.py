"""AdaSD's stop rule (arXiv 2512.11280): draft until the draft is as unsure as, on average, where it was wrong."""

from collections.abc import Mapping
from dataclasses import dataclass

from controller.policies.base import ChunkPlan, ChunkPolicy, PlanState, RoundOutcome
from controller.policies.settings import setting


class EntropyThreshold:
    """The generation threshold T_G: mean entropy (nats) of all rejected draft tokens of one request so far.

    One entry a round, its first rejected token; no window, no decay (arXiv 2512.11280, section on adaptive
    generation). Before the first rejection there is none, which means +infinity.
    """

    def __init__(self) -> None:
        self._sum_nats = 0.0
        self._count = 0

    @property
    def nats(self) -> float | None:
        """The threshold; None before the first rejection."""
        return self._sum_nats / self._count if self._count else None

    def observe(self, outcome: RoundOutcome) -> None:
        """Counts the round's first rejected token, if there is one."""
        if outcome.rejected:
            self._sum_nats += outcome.entropies_nats[outcome.accepted_len]
            self._count += 1


@dataclass(frozen=True, slots=True)
class AdaSDSettings:
    """Settings of `adasd`."""

    max_length: int = setting(20, 1, 1024, "most draft tokens of a chunk")


class AdaSDPolicy(ChunkPolicy):
    """Stops behind the token whose entropy exceeds T_G; at most 20 tokens (arXiv 2512.11280).

    The entropy is that of the draft's own law at the token just drawn, and the token that crosses stays in the chunk.
    The rule needs no signal beyond the entropies and is safe in every lossless mode: the entropy is known before the
    token is drawn.
    """

    def __init__(self, settings: AdaSDSettings) -> None:
        self._max_length = settings.max_length
        self._threshold = EntropyThreshold()

    def snapshot(self) -> Mapping[str, float]:
        """The threshold, once there is one."""
        nats = self._threshold.nats
        return {} if nats is None else {"stop_entropy_nats": nats}

    def plan(self, state: PlanState) -> ChunkPlan:
        """The hard cap and the threshold."""
        return ChunkPlan(min(self._max_length, state.limit), stop_entropy_nats=self._threshold.nats)

    def observe(self, outcome: RoundOutcome) -> None:
        """Moves the threshold."""
        self._threshold.observe(outcome)
