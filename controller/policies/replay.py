"""Re-runs a policy over recorded rounds at given costs: no model, no clock, thousands of rounds a second.

With greedy or coupled decoding, the draft's token at a position is a function of the target's own text in front of it.
So one recording with long chunks says for every position whether the draft would match there *given that all before it
matched*, and what it would go on to draft if not; that decides every chunk of every policy. Under rejection sampling
one recording is one sample of what could have happened.

Three things are not in a recording and are assumed, openly:
- a position that no chunk covered: behind a chunk accepted whole (the bonus token) it counts as matching, with the
  signals of the position before it; in a plain round it counts as not matching. `ReplayResult.assumed` counts both;
- a chunk that goes on behind a rejection further than recorded repeats the last recorded signals there;
- where a token was looked up, the draft's model is taken to draw the same one.
`ReplayResult.beyond` counts the tokens that a policy drafted on any of these assumptions.

A batch of B requests runs in lockstep, the way a padded batch does: each round takes the longest draft, then one
verification of all positions; a request that ends is replaced by the next.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from controller.policies.base import ChunkPlan, ChunkPolicy, PlanState, RoundOutcome
from controller.policies.trace import SIGNAL_FIELDS, RoundRecord


@dataclass(frozen=True, slots=True)
class DraftStep:
    """One drafted token: whether it matches the target's own, and its signals (None where not recorded)."""

    matches: bool
    entropies_nats: float
    draft_probs: float | None = None
    kl_nats: float | None = None
    js_distance: float | None = None
    target_entropies_nats: float | None = None
    recorded: bool = True
    """Whether a recording tells it; else it is one of the assumptions above."""


@dataclass(frozen=True, slots=True)
class TracedPosition:
    """One position of the target's own text: what the draft does there and, if it is wrong, what it drafts next."""

    step: DraftStep
    rollout: tuple[DraftStep, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """A whole answer, position by position; `prompt_len` tokens come before."""

    request: str
    prompt_len: int
    positions: tuple[TracedPosition, ...]
    assumed: int = 0

    def chunk(self, offset: int) -> Iterator[DraftStep]:
        """What the draft draws from position `offset` on: to the answer's end, or for ever behind a rejection."""
        for position in self.positions[offset:]:
            yield position.step
            if not position.step.matches:
                last = position.step
                for last in position.rollout:
                    yield last
                last = replace(last, recorded=False)
                while True:
                    yield last


@dataclass(frozen=True, slots=True)
class ReplayCosts:
    """Times of the parts of a round, in nanoseconds, as functions of their size.

    `draft_ns(tokens)` for a chunk, `verify_ns(positions)` for one forward over all positions of the batch,
    `network_ns` for one round trip to one service: a plain round has one, a speculative round two.
    """

    draft_ns: Callable[[int], float]
    verify_ns: Callable[[int], float]
    network_ns: float = 0.0


def linear_costs(
    draft_ms: float, verify_ms: float, verify_token_ms: float = 0.0, network_ms: float = 0.0
) -> ReplayCosts:
    """Costs from milliseconds: for a drafted token, a forward of one position, each position more, a round trip."""
    return ReplayCosts(
        draft_ns=lambda tokens: tokens * draft_ms * 1e6,
        verify_ns=lambda positions: (verify_ms + (positions - 1) * verify_token_ms) * 1e6,
        network_ns=network_ms * 1e6,
    )


@dataclass(slots=True)
class ReplayResult:
    """Counters of a replay. Rates are quotients of sums, never means of rates."""

    tokens: int = 0
    """Tokens committed."""
    rounds: int = 0
    """Rounds of single requests: a round of a batch of B counts B times."""
    drafted: int = 0
    accepted: int = 0
    time_ns: float = 0.0
    """Time from the first round to the last, all requests together."""
    draft_ns: float = 0.0
    verify_ns: float = 0.0
    network_ns: float = 0.0
    assumed: int = 0
    """Positions whose match was assumed, not recorded, drafted or not."""
    beyond: int = 0
    """Drafted tokens that no recording tells of."""
    accepted_histogram: Counter[int] = field(default_factory=Counter)
    drafted_histogram: Counter[int] = field(default_factory=Counter)

    @property
    def tokens_per_s(self) -> float:
        """Throughput of the batch."""
        return self.tokens / self.time_ns * 1e9 if self.time_ns else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Mean tokens committed in a round of one request."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def acceptance(self) -> float:
        """Accepted draft tokens over drafted ones."""
        return self.accepted / self.drafted if self.drafted else 0.0


def traces_of(records: Iterable[RoundRecord]) -> list[RequestTrace]:
    """The answers that a recording covers, in the order of their first round."""
    by_request: dict[str, list[RoundRecord]] = {}
    for record in records:
        by_request.setdefault(record.request, []).append(record)
    return [_trace(request, rounds) for request, rounds in by_request.items()]


def _trace(request: str, rounds: Sequence[RoundRecord]) -> RequestTrace:
    prompt_len = min(record.base_len for record in rounds)
    known: dict[int, TracedPosition] = {}
    bonus: set[int] = set()
    end = prompt_len
    for record in rounds:
        steps = _steps(record)
        accepted_len = record.outcome.accepted_len
        for index in range(accepted_len):
            known.setdefault(record.base_len + index, TracedPosition(steps[index]))
        if record.outcome.rejected:
            rejected = TracedPosition(steps[accepted_len], tuple(steps[accepted_len + 1 :]))
            known.setdefault(record.base_len + accepted_len, rejected)
        elif record.outcome.drafted_len:
            bonus.add(record.base_len + accepted_len)
        end = max(end, record.base_len + accepted_len + 1)
    positions: list[TracedPosition] = []
    assumed = 0
    for position in range(prompt_len, end):
        if position in known:
            positions.append(known[position])
            continue
        assumed += 1
        positions.append(_assumed(positions, follows_chunk=position in bonus))
    return RequestTrace(request, prompt_len, tuple(positions), assumed)


def _assumed(before: Sequence[TracedPosition], follows_chunk: bool) -> TracedPosition:
    """A position not covered. Behind a chunk accepted whole, one more match is the best guess."""
    if follows_chunk and before:
        return TracedPosition(replace(before[-1].step, recorded=False))
    return TracedPosition(DraftStep(matches=False, entropies_nats=0.0, recorded=False))


def _steps(record: RoundRecord) -> list[DraftStep]:
    outcome = record.outcome
    columns: dict[str, tuple[float, ...]] = {name: getattr(outcome, name) for name in SIGNAL_FIELDS}
    known = {name: values for name, values in columns.items() if values}

    def step(index: int) -> DraftStep:
        signals: dict[str, Any] = {name: values[index] for name, values in known.items()}
        return DraftStep(index < outcome.accepted_len, **signals, recorded=index >= record.looked_up_len)

    return [step(index) for index in range(outcome.drafted_len)]


def draft_chunk(plan: ChunkPlan, steps: Iterator[DraftStep]) -> list[DraftStep]:
    """What the draft service sends for a plan: stop rules look at each drawn token, and the one that fires stays.

    A rule whose number was not recorded does not fire.
    """
    chunk: list[DraftStep] = []
    survival = 1.0
    for step in islice(steps, plan.max_tokens):
        chunk.append(step)
        survival *= 1.0 if step.draft_probs is None else step.draft_probs
        if (
            _above(step.entropies_nats, plan.stop_entropy_nats)
            or _above(plan.stop_prob, step.draft_probs)
            or _above(plan.stop_survival, survival)
        ):
            break
    return chunk


def _above(value: float | None, threshold: float | None) -> bool:
    return value is not None and threshold is not None and value > threshold


class _Session:
    """One request in the replayed batch."""

    def __init__(self, trace: RequestTrace, policy: ChunkPolicy) -> None:
        self.trace = trace
        self.policy = policy
        self.offset = 0
        self.chunk: list[DraftStep] = []

    @property
    def remaining(self) -> int:
        return len(self.trace.positions) - self.offset

    def draft(self, max_draft_tokens: int, temperature: float) -> None:
        committed_len = self.trace.prompt_len + self.offset
        state = PlanState(committed_len, self.remaining, max_draft_tokens, temperature)
        plan = self.policy.plan(state)
        if not 0 <= plan.max_tokens <= state.limit:
            raise ValueError(f"the policy planned {plan.max_tokens} tokens where {state.limit} are of use")
        self.chunk = draft_chunk(plan, self.trace.chunk(self.offset))

    @property
    def accepted_len(self) -> int:
        return next((index for index, step in enumerate(self.chunk) if not step.matches), len(self.chunk))

    def outcome(self, draft_ns: float, wait_ns: float, forward_ns: float, round_ns: float, batch: int) -> RoundOutcome:
        columns = {name: tuple(getattr(step, name) for step in self.chunk) for name in SIGNAL_FIELDS}
        recorded: dict[str, Any] = {name: () if None in values else values for name, values in columns.items()}
        return RoundOutcome(
            drafted_len=len(self.chunk),
            accepted_len=self.accepted_len,
            draft_ns=round(draft_ns),
            queue_ns=round(wait_ns),
            forward_ns=round(forward_ns),
            round_ns=round(round_ns),
            batch_size=batch,
            **recorded,
        )


def replay(
    traces: Sequence[RequestTrace],
    make: Callable[[], ChunkPolicy],
    costs: ReplayCosts,
    *,
    batch_size: int = 1,
    max_draft_tokens: int = 64,
    temperature: float = 1.0,
) -> ReplayResult:
    """Runs all `traces`, `batch_size` at a time, each under a policy from `make`.

    `temperature` is what policies are told that the recording was made at.
    """
    result = ReplayResult(assumed=sum(trace.assumed for trace in traces))
    waiting = deque(trace for trace in traces if trace.positions)
    live: list[_Session] = []
    while waiting or live:
        while waiting and len(live) < batch_size:
            live.append(_Session(waiting.popleft(), make()))
        _round(live, costs, max_draft_tokens, temperature, result)
        live = [session for session in live if session.remaining > 0]
    return result


def _round(
    live: Sequence[_Session], costs: ReplayCosts, max_draft_tokens: int, temperature: float, result: ReplayResult
) -> None:
    for session in live:
        session.draft(max_draft_tokens, temperature)
    longest = max(len(session.chunk) for session in live)
    draft_ns = costs.draft_ns(longest) if longest else 0.0
    verify_ns = costs.verify_ns(sum(len(session.chunk) + 1 for session in live))
    network_ns = costs.network_ns * (2 if longest else 1)
    round_ns = draft_ns + verify_ns + network_ns
    result.time_ns += round_ns
    result.draft_ns += draft_ns
    result.verify_ns += verify_ns
    result.network_ns += network_ns
    for session in live:
        own_ns = costs.draft_ns(len(session.chunk)) if session.chunk else 0.0
        outcome = session.outcome(own_ns, draft_ns - own_ns, verify_ns, round_ns, len(live))
        session.policy.observe(outcome)
        session.offset += outcome.accepted_len + 1
        result.rounds += 1
        result.tokens += outcome.accepted_len + 1
        result.drafted += outcome.drafted_len
        result.accepted += outcome.accepted_len
        result.beyond += sum(not step.recorded for step in session.chunk)
        result.accepted_histogram[outcome.accepted_len] += 1
        result.drafted_histogram[outcome.drafted_len] += 1
