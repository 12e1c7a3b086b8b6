"""What all requests on one draft and verifier pair know together, so that none has to learn it anew.

Costs are a property of the machines, not of a request; and in a batch one request's length is everyone's time. One
`PairKnowledge` lives as long as the controller's pools; every policy of the pair is made with it.
"""

from collections.abc import Mapping

from controller.policies.base import ChunkPlan, ChunkPolicy, PlanState, RoundOutcome
from controller.policies.batch_cap import BatchCap
from controller.policies.costs import RoundCosts
from controller.policies.estimates import RunningMean
from controller.policies.live import LiveValues
from controller.policies.yields import YieldModel
from speculative.sampling.types import Signal

_MEMORY_ROUNDS = 500
_BATCH_MEMORY_ROUNDS = 16
_ROUNDING = 1e-6


class PairKnowledge:
    """Costs, yields, the batch cap, and what the live requests are drafting."""

    def __init__(self) -> None:
        self.costs = RoundCosts()
        self.cap = BatchCap()
        self.yields = YieldModel(_MEMORY_ROUNDS)
        self._batch_sizes = RunningMean(_BATCH_MEMORY_ROUNDS)
        self._lengths = LiveValues()
        self._drafted_share = RunningMean(_MEMORY_ROUNDS)

    @property
    def live_requests(self) -> int:
        """Requests that are live, at least 1."""
        return max(1, len(self._lengths))

    @property
    def batch_size(self) -> float:
        """Sessions in the verifier's batch lately; a mean, so that a batch that comes and goes does not toss plans."""
        return self._batch_sizes.mean if self._batch_sizes.known else 1.0

    @property
    def mean_length(self) -> float:
        """Mean chunk length of all live requests: drafted, or expected of a chunk that is still on its way.

        Exactly 0 when nobody drafts.
        """
        mean = self._lengths.mean
        return mean if mean > _ROUNDING else 0.0

    def begin(self, request: object, planned_len: int) -> None:
        """A round begins."""
        share = self._drafted_share.mean if self._drafted_share.known else 1.0
        self._lengths.set(request, planned_len * share)

    def end(self, request: object, planned_len: int, outcome: RoundOutcome) -> None:
        """A round ends."""
        self._lengths.set(request, outcome.drafted_len)
        self._batch_sizes.add(max(1, outcome.batch_size))
        if planned_len and not outcome.looked_up_len:
            self._drafted_share.add(outcome.drafted_len / planned_len)
            self.yields.observe(planned_len, outcome.drafted_len, outcome.accepted_len)


class PooledPolicy(ChunkPolicy):
    """A policy whose rounds also feed the pair's knowledge. Everything `make_policy` returns is one."""

    def __init__(self, policy: ChunkPolicy, knowledge: PairKnowledge) -> None:
        self._policy = policy
        self._knowledge = knowledge
        self._rounds = 0
        self._planned_len = 0
        self._was_plain = True

    @property
    def wanted_signals(self) -> frozenset[Signal]:
        """The policy's."""
        return self._policy.wanted_signals

    def snapshot(self) -> Mapping[str, float]:
        """The policy's."""
        return self._policy.snapshot()

    def plan(self, state: PlanState) -> ChunkPlan:
        """The policy's plan."""
        plan = self._policy.plan(state)
        self._planned_len = plan.max_tokens
        self._knowledge.begin(self, plan.max_tokens)
        return plan

    def observe(self, outcome: RoundOutcome) -> None:
        """Feeds the knowledge, then the policy. A request's first round waits for the prompt: its times say nothing."""
        self._knowledge.end(self, self._planned_len, outcome)
        if self._rounds:
            resumed = self._was_plain and outcome.drafted_len > 0
            self._knowledge.costs.observe(outcome, self._knowledge.mean_length, resumed)
        self._rounds += 1
        self._was_plain = outcome.drafted_len == outcome.looked_up_len  # the model drafted nothing and is behind
        self._policy.observe(outcome)
