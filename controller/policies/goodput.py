"""AdaSpec's rule: the length with the highest goodput by the draft's own confidence and measured costs."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.policies.base import ChunkPlan, ChunkPolicy, PlanState, RoundOutcome
from controller.policies.costs import RoundCosts
from controller.policies.settings import setting, switch
from speculative.sampling.types import Signal

_LEAST_EXPONENT, _MOST_EXPONENT = 1 / 16, 16.0
_PRIOR_TOKENS = 10
"""Judged tokens that what is believed beforehand weighs as much as: the draft's word, else an acceptance of 0.7."""
_PRIOR_ACCEPTANCE = 0.7


@dataclass(frozen=True, slots=True)
class GoodputSettings:
    """Settings of `goodput`."""

    max_length: int = setting(20, 1, 1024, "most draft tokens of a chunk")
    initial_length: int = setting(5, 0, 1024, "draft tokens of a chunk while costs are not known")
    window: int = setting(100, 1, 10_000, "newest judged tokens that the confidence rests on")
    calibrate: bool = switch(True, "whether the draft's probabilities are corrected by what stood (ours)")
    retry_rounds: int = setting(64, 1, 1_000_000, "plain rounds after which a chunk is tried where none seemed to pay")
    slo_ms_per_token: float = setting(0.0, 0.0, 1e9, "longest step, in milliseconds; 0 for none")


def expected_tokens(confidence: float, length: int) -> float:
    """`1 + sum_{j <= length} confidence^j`: the target's own token and the drafted ones that stand."""
    return 1.0 + sum(confidence**position for position in range(1, length + 1))


def calibration_exponent(probs: Sequence[float], acceptance: float) -> float:
    """The g in [1/16, 16] at which the mean of `prob^g` is `acceptance`, to 1 %; `probs` are in (0, 1].

    Below 1 the draft is better than it says, as a greedy one often is. A power keeps products: the survival of a chunk
    is the product of its probabilities, to the same power.
    """
    low, high = math.log(_LEAST_EXPONENT), math.log(_MOST_EXPONENT)
    while high - low > 0.01:
        middle = (low + high) / 2
        exponent = math.exp(middle)
        if sum(prob**exponent for prob in probs) > acceptance * len(probs):
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)


class GoodputPolicy(ChunkPolicy):
    """Chooses the chunk length of the highest predicted goodput, or 0 (arXiv 2503.05096).

    `goodput(s) = (B + sum_i sum_{j <= s} c_ij) / (s T_draft(B) + T_target((s + 1) B))`, where
    `c_ij` is the product of the draft's probabilities of the tokens it drew; what is not drawn yet is predicted with
    the running mean confidence, for all B sessions of the batch alike. Costs are measured (costs.py), and the target's
    contains the round trips. 0 when goodput(1) <= goodput(0); a step longer than the time per token allows is not
    feasible.

    In the chunk: one token more pays while `survival * confidence > goodput * marginal cost`, so drafting stops where
    the product of the drawn tokens' probabilities falls below `goodput * marginal cost / confidence`, and goes up to
    `max_length` before. That needs the draft's probabilities to come back; without them the length is the best
    predicted one.

    The paper takes the draft's probabilities at their word. Here the confidence is the share of judged tokens that
    stood, and probabilities are raised to the power that makes them say the same on average; `calibrate` = 0 is the
    paper's rule.

    The paper also trims drafted tokens of low confidence before verification. Dropping a token after seeing its
    probability is not lossless under rejection sampling, so nothing is dropped here.
    """

    def __init__(self, settings: GoodputSettings, costs: RoundCosts) -> None:
        self._settings = settings
        self._costs = costs
        self._stood: deque[bool] = deque(maxlen=settings.window)
        self._probs: deque[float] = deque(maxlen=settings.window)
        self._confidence = 0.0
        self._exponent = 1.0
        self._batch_size = 1
        self._plain_rounds = 0

    @property
    def wanted_signals(self) -> frozenset[Signal]:
        """The drawn tokens' probabilities."""
        return frozenset({Signal.DRAFT_PROB})

    def snapshot(self) -> Mapping[str, float]:
        """The mean confidence, and the power that the draft's probabilities are raised to."""
        return {"confidence": self._confidence, "exponent": self._exponent}

    def goodput(self, length: int) -> float:
        """Predicted tokens per nanosecond of one session with chunks of `length`; 0 where that is not feasible."""
        round_ns = self._costs.round_ns(length, self._batch_size)
        slo_ns = self._settings.slo_ms_per_token * 1e6
        if round_ns <= 0.0 or (length and slo_ns and round_ns > slo_ns):
            return 0.0
        return expected_tokens(self._confidence, length) / round_ns

    def plan(self, state: PlanState) -> ChunkPlan:
        """The best length and, where probabilities come back, the survival at which to stop."""
        if not self._costs.knows_speculation or not self._stood:
            return ChunkPlan(min(self._settings.initial_length, state.limit))
        most = min(self._settings.max_length, state.limit)
        if most == 0 or self.goodput(1) <= self.goodput(0):
            return ChunkPlan(0 if self._plain_rounds < self._settings.retry_rounds else min(1, most))
        best = max(range(1, most + 1), key=self.goodput)
        if not self._probs:
            return ChunkPlan(best)
        return ChunkPlan(most, stop_survival=self._stop_survival(best))

    def observe(self, outcome: RoundOutcome) -> None:
        """Takes the tokens that were judged: the accepted ones and the first rejected one."""
        self._batch_size = max(1, outcome.batch_size)
        self._plain_rounds = 0 if outcome.drafted_len else self._plain_rounds + 1
        judged_len = min(outcome.accepted_len + 1, outcome.drafted_len)
        self._stood.extend(position < outcome.accepted_len for position in range(judged_len))
        # A probability of 0 is the wire's rounding of a small one.
        self._probs.extend(max(prob, 1e-6) for prob in outcome.draft_probs[:judged_len])
        if not self._stood:
            return
        believed = sum(self._probs) / len(self._probs) if self._probs else _PRIOR_ACCEPTANCE
        if self._probs and not self._settings.calibrate:
            self._confidence = believed
            return
        self._confidence = (sum(self._stood) + _PRIOR_TOKENS * believed) / (len(self._stood) + _PRIOR_TOKENS)
        if self._probs:
            self._exponent = calibration_exponent(self._probs, self._confidence)

    def _stop_survival(self, length: int) -> float | None:
        """Product of probabilities below which one token more lowers the goodput of a chunk of `length`."""
        longer_ns = self._costs.round_ns(length + 1, self._batch_size)
        marginal_ns = longer_ns - self._costs.round_ns(length, self._batch_size)
        survival = self.goodput(length) * marginal_ns / max(self._confidence, 1e-9)
        if survival <= 0.0:
            return None
        return math.pow(min(survival, 1.0), 1.0 / self._exponent)
