"""Round outcomes for policy tests, with everything a test does not care about at a plain value."""

from controller.policies.base import PlanState, RoundOutcome

STATE = PlanState(committed_len=10, remaining_tokens=1000, max_draft_tokens=64)


def round_outcome(drafted_len: int, accepted_len: int, **fields: object) -> RoundOutcome:
    """A round of 1 ms with entropies 0, unless `fields` say otherwise."""
    values: dict[str, object] = {
        "entropies_nats": (0.0,) * drafted_len,
        "draft_ns": 0,
        "queue_ns": 0,
        "forward_ns": 1_000_000,
        "round_ns": 1_000_000,
        "batch_size": 1,
    }
    return RoundOutcome(drafted_len, accepted_len, **{**values, **fields})  # type: ignore[arg-type]
