"""AdaSpec's rule: the length with the highest goodput by the draft's own confidence and measured costs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from controller.policies.base import ChunkPlan, ChunkPolicy, PlanState, RoundOutcome
from controller.policies.costs import RoundCosts
from controller.policies.estimates import RunningMean
from controller.policies.settings import setting
from speculative.sampling.types import Signal


@dataclass(frozen=True, slots=True)
class GoodputSettings:
    """Settings of `goodput`."""

    max_length: int = setting(20, 1, 1024, "most draft tokens of a chunk")
    initial_length: int = setting(5, 0, 1024, "draft tokens of a chunk while costs are not known")
    window: int = setting(100, 1, 100_000, "newest drafted tokens that the mean confidence rests on")
    slo_ms_per_token: float = setting(0.0, 0.0, 1e9, "longest step, in milliseconds; 0 for none")


def expected_tokens(confidence: float, length: int) -> float:
    """`1 + sum_{j <= length} confidence^j`: the target's own token and the drafted ones that stand."""
    return 1.0 + sum(confidence**position for position in range(1, length + 1))


class GoodputPolicy(ChunkPolicy):
    """Chooses the chunk length of the highest predicted goodput, or 0 (arXiv 2503.05096).

    `goodput(s) = (B + sum_i sum_{j <= s} c_ij) / (s T_draft(B) + T_target((s + 1) B))`, where
    `c_ij` is the product of the draft's probabilities of the tokens it drew; what is not drawn yet is predicted with
    the running mean confidence, for all B sessions of the batch alike. Costs are measured (costs.py), and the target's
    contains the round trips. 0 when goodput(1) <= goodput(0); a step longer than the time per token allows is not
    feasible.

    In the chunk: one token more pays while `survival * confidence > goodput * marginal cost`, so drafting stops where
    the product of the drawn tokens' probabilities falls below `goodput * marginal cost / confidence`, and up to
    `max_length` before. That needs the draft's probabilities to come back; without them the confidence is the measured
    acceptance, and the length the best predicted one.

    The paper also trims drafted tokens of low confidence before verification. Dropping a token after seeing its
    probability is not lossless under rejection sampling, so nothing is dropped here.
    """

    def __init__(self, settings: GoodputSettings, costs: RoundCosts) -> None:
        self._settings = settings
        self._costs = costs
        self._confidence = RunningMean(settings.window)
        self._sees_probs = False
        self._batch_size = 1

    @property
    def wanted_signals(self) -> frozenset[Signal]:
        """The drawn tokens' probabilities."""
        return frozenset({Signal.DRAFT_PROB})

    def snapshot(self) -> Mapping[str, float]:
        """The mean confidence."""
        return {"confidence": self._confidence.mean}

    def goodput(self, length: int) -> float:
        """Predicted tokens per nanosecond of one session with chunks of `length`; 0 where that is not feasible."""
        round_ns = self._costs.round_ns(length, self._batch_size)
        slo_ns = self._settings.slo_ms_per_token * 1e6
        if round_ns <= 0.0 or (length and slo_ns and round_ns > slo_ns):
            return 0.0
        return expected_tokens(self._confidence.mean, length) / round_ns

    def plan(self, state: PlanState) -> ChunkPlan:
        """The best length and, where probabilities come back, the survival at which to stop."""
        if not self._costs.knows_speculation or not self._confidence.known:
            return ChunkPlan(min(self._settings.initial_length, state.limit))
        most = min(self._settings.max_length, state.limit)
        if most == 0 or self.goodput(1) <= self.goodput(0):
            return ChunkPlan(0)
        best = max(range(1, most + 1), key=self.goodput)
        if not self._sees_probs:
            return ChunkPlan(best)
        return ChunkPlan(most, stop_survival=self._stop_survival(best))

    def observe(self, outcome: RoundOutcome) -> None:
        """Takes the confidences: probabilities of drawn tokens, or which tokens stood."""
        self._batch_size = outcome.batch_size
        self._sees_probs = self._sees_probs or bool(outcome.draft_probs)
        if self._sees_probs:
            confidences = list(outcome.draft_probs)
        else:
            confidences = [1.0] * outcome.accepted_len + [0.0] * outcome.rejected
        for confidence in confidences:
            self._confidence.add(confidence)

    def _stop_survival(self, length: int) -> float | None:
        """Survival below which one token more lowers the goodput of a chunk of `length`; None if it never does."""
        marginal_ns = self._costs.round_ns(length + 1, self._batch_size) - self._costs.round_ns(
            length, self._batch_size
        )
        threshold = self.goodput(length) * marginal_ns / max(self._confidence.mean, 1e-9)
        return threshold if math.isfinite(threshold) and threshold > 0.0 else None
