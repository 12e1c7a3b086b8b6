"""Transformers' dynamic assisted decoding: stop on the draft's confidence in the token it drew."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.policies.base import ChunkPlan, ChunkPolicy, PlanState, RoundOutcome
from controller.policies.settings import setting
from speculative.sampling.types import Signal

MIN_SAMPLES = 6
"""More than five tokens must have been judged before the threshold moves."""
MISS_COST = 3.0
"""Cost of stopping in front of a token that would have stood, against drafting one that falls."""


@dataclass(frozen=True, slots=True)
class HfDynamicSettings:
    """Settings of `hf_dynamic`; the defaults are transformers'."""

    max_length: int = setting(20, 1, 1024, "most draft tokens of a chunk")
    initial_threshold: float = setting(0.4, 0.0, 1.0, "first threshold of the drawn token's draft probability")
    history: int = setting(1000, 6, 100_000, "newest judged tokens that the threshold rests on")


class HfDynamicPolicy(ChunkPolicy):
    """Stops behind a token whose draft probability is under a threshold learnt from a ROC curve (transformers 4.45).

    The rule looks at the token that was drawn, so it is lossless only because that token is sent nevertheless: see
    `ChunkPlan.stop_prob`. Transformers keeps every judged token; here the newest 1000 count, so that a round's work
    stays bounded. Without the draft's probabilities the threshold stays where it is.
    """

    def __init__(self, settings: HfDynamicSettings) -> None:
        self._max_length = settings.max_length
        self._threshold = settings.initial_threshold
        self._judged: deque[tuple[float, bool]] = deque(maxlen=settings.history)

    @property
    def wanted_signals(self) -> frozenset[Signal]:
        """The drawn tokens' probabilities."""
        return frozenset({Signal.DRAFT_PROB})

    def snapshot(self) -> Mapping[str, float]:
        """The threshold."""
        return {"stop_prob": self._threshold}

    def plan(self, state: PlanState) -> ChunkPlan:
        """The cap and the threshold."""
        return ChunkPlan(min(self._max_length, state.limit), stop_prob=self._threshold)

    def observe(self, outcome: RoundOutcome) -> None:
        """Adds the accepted tokens and the first rejected one; those behind it were never judged."""
        judged_len = min(outcome.accepted_len + 1, outcome.drafted_len)
        self._judged.extend(
            (prob, position < outcome.accepted_len) for position, prob in enumerate(outcome.draft_probs[:judged_len])
        )
        num_accepted = sum(accepted for _, accepted in self._judged)
        if len(self._judged) >= MIN_SAMPLES and 0 < num_accepted < len(self._judged):
            self._threshold = best_threshold(self._judged)


def best_threshold(judged: Iterable[tuple[float, bool]]) -> float:
    """The probability t at which predicting "accepted" for `prob >= t` has the least `fpr + 3 (1 - tpr)`.

    `judged` are pairs (probability, accepted), at least one of either kind. Candidates are the probabilities that
    occur; of equally good ones the highest wins.
    """
    ordered = sorted(judged, reverse=True)
    num_accepted = sum(accepted for _, accepted in ordered)
    num_rejected = len(ordered) - num_accepted
    best_cost, best = float("inf"), 1.0
    hits = 0
    for index, (prob, accepted) in enumerate(ordered):
        hits += accepted
        if index + 1 < len(ordered) and ordered[index + 1][0] == prob:
            continue
        false_alarms = index + 1 - hits
        cost = false_alarms / num_rejected + MISS_COST * (1.0 - hits / num_accepted)
        if cost < best_cost:
            best_cost, best = cost, prob
    return best
