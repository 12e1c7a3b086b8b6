"""What rounds cost where a trace was recorded, as costs for its replay."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controller.policies.replay import ReplayCosts, linear_costs
from controller.policies.trace import RoundRecord

_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class CostModel:
    """Milliseconds for a drafted token, a forward of one position, each position more, one network round trip."""

    draft_ms: float
    verify_ms: float
    verify_token_ms: float = 0.0
    network_ms: float = 0.0

    @property
    def costs(self) -> ReplayCosts:
        """The same as functions of sizes."""
        return linear_costs(self.draft_ms, self.verify_ms, self.verify_token_ms, self.network_ms)


def without_first_rounds(records: Iterable[RoundRecord]) -> list[RoundRecord]:
    """The records without each request's first round: it waits for the prompt, so its times say nothing."""
    seen: set[str] = set()
    later: list[RoundRecord] = []
    for record in records:
        if record.request in seen:
            later.append(record)
        seen.add(record.request)
    return later


def network_and_loop_ns(record: RoundRecord) -> int:
    """What of a round no service accounts for."""
    outcome = record.outcome
    return max(0, outcome.round_ns - outcome.draft_ns - outcome.queue_ns - outcome.forward_ns)


def measured_costs(records: Iterable[RoundRecord]) -> CostModel | None:
    """Mean draft time a token, a line through the forward times, and the mean of the rest over a round's round trips.

    None where the times were not recorded, or nothing was drafted.
    """
    rounds = [record for record in without_first_rounds(records) if record.outcome.round_ns]
    drafted = sum(record.outcome.drafted_len for record in rounds)
    if not drafted:
        return None
    draft_ns = sum(record.outcome.draft_ns for record in rounds)
    trips = sum(2 if record.outcome.drafted_len else 1 for record in rounds)
    rest_ns = sum(map(network_and_loop_ns, rounds))
    forward_ns, position_ns = _line(
        [float(record.outcome.drafted_len) for record in rounds],
        [float(record.outcome.forward_ns) for record in rounds],
    )
    return CostModel(
        draft_ns / drafted / _NS_PER_MS, forward_ns / _NS_PER_MS, position_ns / _NS_PER_MS, rest_ns / trips / _NS_PER_MS
    )


def _line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Least squares: the value at 0, and the slope. Flat where noise would make either of them negative."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    rise = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    slope = rise / spread if spread else 0.0
    start = mean_y - slope * mean_x
    return (start, slope) if start > 0.0 and slope > 0.0 else (mean_y, 0.0)
