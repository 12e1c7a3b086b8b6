"""What all requests on one draft and verifier pair know together, so that none has to learn it anew.

Costs are a property of the machines, not of a request; and in a batch one request's length is everyone's time. One
`PairKnowledge` lives as long as the controller's pools; every policy of the pair is made with it.
"""

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from controller.policies.base import ChunkPlan, ChunkPolicy, PlanState, RoundOutcome, Signal
from controller.policies.batch_cap import BatchCap
from controller.policies.costs import RoundCosts
from controller.policies.yields import YieldModel

_YIELD_MEMORY_ROUNDS = 500


class PairKnowledge:
    """Costs, yields, the batch cap and who is live."""

    def __init__(self) -> None:
        self.costs = RoundCosts()
        self.cap = BatchCap()
        self.yields = YieldModel(_YIELD_MEMORY_ROUNDS)
        self.batch_size = 1
        self._lengths: WeakKeyDictionary[object, int] = WeakKeyDictionary()

    @property
    def live_requests(self) -> int:
        """Requests that have had a round and still exist."""
        return len(self._lengths)

    @property
    def mean_length(self) -> float:
        """Mean drafted length over the last rounds of all live requests."""
        return sum(self._lengths.values()) / len(self._lengths) if self._lengths else 0.0

    def observe(self, request: object, outcome: RoundOutcome, planned_len: int, resumed: bool) -> None:
        """Takes a round whose times are those of a round: not a request's first, which waits for the prompt."""
        self._lengths[request] = outcome.drafted_len
        self.batch_size = outcome.batch_size
        self.costs.observe(outcome, self.mean_length, resumed)
        if planned_len:
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
        return plan

    def observe(self, outcome: RoundOutcome) -> None:
        """Feeds the knowledge, then the policy."""
        if self._rounds:
            resumed = self._was_plain and outcome.drafted_len > 0
            self._knowledge.observe(self, outcome, self._planned_len, resumed)
        self._rounds += 1
        self._was_plain = outcome.drafted_len == 0
        self._policy.observe(outcome)
