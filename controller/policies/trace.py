"""Round traces: what every round of a request planned, drew, cost and brought, one JSON object a line.

    {"request": "r1", "base_len": 57, "policy": "adasd+dsde", "max_tokens": 9, "stop_entropy_nats": 1.21,
     "draft_token_ids": [284, 198, ...], "next_token_id": 11, "accepted_len": 3,
     "entropies_nats": [0.02, ...], "draft_probs": [0.99, ...], "kl_nats": [...], "js_distance": [...],
     "target_entropies_nats": [...], "draft_ns": 3100000, "queue_ns": 80000, "forward_ns": 21000000,
     "round_ns": 25000000, "batch_size": 4, "state": {"wvir": 0.8, "sl_max": 12.0},
     "looked_up_len": 0, "settings": {"target": "big", "temperature": 0.0}}

Required: `request` (any text; lines of one request are in order), `base_len` (committed tokens, prompt included, in
front of the chunk), `draft_token_ids` or `drafted_len`, `accepted_len`, and `entropies_nats` where anything was
drafted. Lists have one entry for each drafted token, those behind the first rejection too, or are absent (or empty)
when not recorded. The first `looked_up_len` draft tokens were looked up, not drawn by a model. `settings` says how the
request was made, on its first line only. Everything else may be absent, and fields not named here are ignored, so that
a recorder may add its own.

No text is in a trace. Token ids are as good as text, and no policy looks at them: what this program records of requests
leaves them out.

To replay shorter chunks than were recorded, record long ones; a round may begin at any position that its request has
committed, also one that an earlier line has covered.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.policies.base import ChunkPlan, RoundOutcome
from speculative.errors import InvalidRequestError

_DECIMALS = 5
_STOP_RULES = ("stop_entropy_nats", "stop_prob", "stop_survival")
SIGNAL_FIELDS = ("entropies_nats", "draft_probs", "kl_nats", "js_distance", "target_entropies_nats")
Setting = float | str
"""A value of `settings`; switches are 0 or 1."""
_TIMES = ("draft_ns", "queue_ns", "forward_ns", "round_ns")


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round of a request."""

    request: str
    base_len: int
    plan: ChunkPlan
    outcome: RoundOutcome
    draft_token_ids: tuple[int, ...] = ()
    next_token_id: int | None = None
    policy: str = ""
    looked_up_len: int = 0
    """How many of the drafted tokens, from the first on, were looked up: they say nothing about the draft's model."""
    state: Mapping[str, float] = field(default_factory=dict)
    """The policy's snapshot before the round."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """How the request was made; empty on all but its first round."""


def record_line(record: RoundRecord) -> str:
    """The record as one line of JSON, without the line's end; what is empty, absent or not finite is left out."""
    outcome, plan = record.outcome, record.plan
    rules: dict[str, float | None] = {name: getattr(plan, name) for name in _STOP_RULES}
    values: dict[str, Any] = {
        "request": record.request,
        "base_len": record.base_len,
        "policy": record.policy,
        "max_tokens": plan.max_tokens,
        **{name: _short(value) for name, value in rules.items() if value is not None and math.isfinite(value)},
        "drafted_len": outcome.drafted_len,
        "looked_up_len": record.looked_up_len or None,
        "draft_token_ids": list(record.draft_token_ids),
        "next_token_id": record.next_token_id,
        "accepted_len": outcome.accepted_len,
        **{name: [_short(value) for value in _finite(getattr(outcome, name))] for name in SIGNAL_FIELDS},
        **{name: getattr(outcome, name) for name in _TIMES},
        "batch_size": outcome.batch_size,
        "state": {name: _short(value) for name, value in record.state.items() if math.isfinite(value)},
        "settings": dict(record.settings),
    }
    kept = {name: value for name, value in values.items() if value not in (None, [], {}, "")}
    return json.dumps(kept, separators=(",", ":"))


def read_records(lines: Iterable[str]) -> Iterator[RoundRecord]:
    """The records of a trace; blank lines are skipped. InvalidRequestError names the line that is not a record."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            if not isinstance(values, dict):
                raise TypeError("not a JSON object")
            yield _record(values)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            problem = f"missing {error}" if isinstance(error, KeyError) else str(error)
            raise InvalidRequestError(f"trace line {number}", problem) from error


def _record(values: Mapping[str, Any]) -> RoundRecord:
    ids = tuple(int(token_id) for token_id in values.get("draft_token_ids", ()))
    drafted_len = int(values.get("drafted_len", len(ids))) if ids else int(values["drafted_len"])
    next_token_id = values.get("next_token_id")
    return RoundRecord(
        request=str(values["request"]),
        base_len=int(values["base_len"]),
        plan=_plan(values, drafted_len),
        outcome=_outcome(values, drafted_len, len(ids)),
        draft_token_ids=ids,
        next_token_id=None if next_token_id is None else int(next_token_id),
        policy=str(values.get("policy", "")),
        looked_up_len=int(values.get("looked_up_len", 0)),
        state={str(name): _number(value) for name, value in values.get("state", {}).items()},
        settings={str(name): _setting(value) for name, value in values.get("settings", {}).items()},
    )


def _plan(values: Mapping[str, Any], drafted_len: int) -> ChunkPlan:
    stops = {name: None if values.get(name) is None else _number(values[name]) for name in _STOP_RULES}
    return ChunkPlan(int(values.get("max_tokens", drafted_len)), **stops)


def _outcome(values: Mapping[str, Any], drafted_len: int, num_ids: int) -> RoundOutcome:
    accepted_len = int(values["accepted_len"])
    if not 0 <= accepted_len <= drafted_len or num_ids not in (0, drafted_len):
        raise ValueError(f"{accepted_len} accepted of {drafted_len} drafted tokens ({num_ids} ids)")
    signals = {name: tuple(_number(value) for value in values.get(name, ())) for name in SIGNAL_FIELDS}
    if drafted_len and not signals["entropies_nats"]:
        raise KeyError("entropies_nats")
    for name, entries in signals.items():
        if entries and len(entries) != drafted_len:
            raise ValueError(f"{name} has {len(entries)} entries for {drafted_len} drafted tokens")
    fields: dict[str, Any] = {**signals, **{name: int(values.get(name, 0)) for name in _TIMES}}
    return RoundOutcome(drafted_len, accepted_len, batch_size=int(values.get("batch_size", 1)), **fields)


def _finite(values: tuple[float, ...]) -> tuple[float, ...]:
    return values if all(map(math.isfinite, values)) else ()


def _number(value: Any) -> float:  # noqa: ANN401  # whatever the JSON has there
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is not a number")
    return number


def _setting(value: object) -> Setting:
    return float(value) if isinstance(value, int | float) else str(value)


def _short(value: float) -> float:
    return round(float(value), _DECIMALS)
