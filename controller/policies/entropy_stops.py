"""Policies that stop on the draft's entropy at a threshold of their own: AdaEDL and SVIP.

Both bound the chance of acceptance from below by the entropy H of the draft's law, so both are a threshold on H, known
before the token is drawn. The token that crosses it stays in the chunk.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from controller.policies.base import ChunkPlan, ChunkPolicy, PlanState, RoundOutcome
from controller.policies.settings import setting


@dataclass(frozen=True, slots=True)
class AdaEDLSettings:
    """Settings of `adaedl`; defaults are the paper's where it gives one."""

    max_length: int = setting(20, 1, 1024, "most draft tokens of a chunk")
    gamma: float = setting(0.2, 1e-6, 1e6, "weight of the entropy in the bound 1 - sqrt(gamma * H)")
    initial_lambda: float = setting(0.5, 0.0, 1.0, "first threshold of the bound")
    target_rate: float = setting(0.9, 0.0, 1.0, "acceptance rate that the threshold is steered to")
    rate_decay: float = setting(0.5, 0.0, 1.0, "weight of the past in the acceptance rate (beta 1)")
    lambda_decay: float = setting(0.9, 0.0, 1.0, "weight of the past in the threshold (beta 2)")
    step: float = setting(0.01, 0.0, 1.0, "step of the threshold (epsilon)")


class AdaEDLPolicy(ChunkPolicy):
    """Stops when `1 - sqrt(gamma * H) < lambda`, lambda steered by the acceptance rate (arXiv 2410.18351).

    `AR <- b1 AR + (1 - b1) accepted / drafted`; `lambda' = lambda + step` if AR is under the target rate, else
    `lambda - step`; `lambda <- b2 lambda + (1 - b2) lambda'`. The paper's text at hand gives no first values: AR starts
    at the target rate, lambda at 0.5; lambda is kept in [0, 1], outside which the rule always or never fires.
    """

    def __init__(self, settings: AdaEDLSettings) -> None:
        self._settings = settings
        self._lambda = settings.initial_lambda
        self._rate = settings.target_rate

    def snapshot(self) -> Mapping[str, float]:
        """Lambda, the acceptance rate and the threshold on the entropy."""
        return {"lambda": self._lambda, "acceptance_rate": self._rate, "stop_entropy_nats": self._stop_entropy_nats}

    @property
    def _stop_entropy_nats(self) -> float:
        """The rule solved for the entropy: `H > (1 - lambda)^2 / gamma`."""
        return (1.0 - self._lambda) ** 2 / self._settings.gamma

    def plan(self, state: PlanState) -> ChunkPlan:
        """The cap and the threshold."""
        return ChunkPlan(min(self._settings.max_length, state.limit), stop_entropy_nats=self._stop_entropy_nats)

    def observe(self, outcome: RoundOutcome) -> None:
        """Moves the acceptance rate, then lambda; a round without draft tokens has no rate."""
        if outcome.drafted_len == 0:
            return
        settings = self._settings
        rate = outcome.accepted_len / outcome.drafted_len
        self._rate = settings.rate_decay * self._rate + (1.0 - settings.rate_decay) * rate
        step = settings.step if self._rate < settings.target_rate else -settings.step
        moved = self._lambda + (1.0 - settings.lambda_decay) * step
        self._lambda = min(1.0, max(0.0, moved))


@dataclass(frozen=True, slots=True)
class SvipSettings:
    """Settings of `svip`; defaults are the paper's."""

    max_length: int = setting(40, 1, 1024, "most draft tokens of a chunk")
    scale: float = setting(0.15, 1e-6, 1e6, "weight of the entropy")
    threshold: float = setting(0.3, 0.0, 1e6, "stops when sqrt(scale * H) is above this")


class SvipPolicy(ChunkPolicy):
    """Stops when `sqrt(0.15 * H) > 0.3`, that is H > 0.6 nats; at most 40 tokens (arXiv 2411.18462)."""

    def __init__(self, settings: SvipSettings) -> None:
        self._max_length = settings.max_length
        self._stop_entropy_nats = settings.threshold**2 / settings.scale

    def plan(self, state: PlanState) -> ChunkPlan:
        """The cap and the threshold, always the same."""
        return ChunkPlan(min(self._max_length, state.limit), stop_entropy_nats=self._stop_entropy_nats)

    def observe(self, outcome: RoundOutcome) -> None:
        """Nothing to learn."""
