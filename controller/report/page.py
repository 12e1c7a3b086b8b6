"""A report: recorded rounds drawn on one page that needs nothing else, neither files nor a network."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import jinja2

from controller.policies.trace import RoundRecord
from controller.report.figures import (
    MOST_ROUNDS_DRAWN,
    Timeline,
    acceptance_by_position,
    accepted_histogram,
    costs,
)

_MOST_VALUES = 6


@dataclass(frozen=True, slots=True)
class Number:
    """A number that sums up, with its unit, its name and what it means."""

    value: str
    unit: str
    name: str
    meaning: str


def render(records: Sequence[RoundRecord], sources: Sequence[str]) -> str:
    """The page as HTML, everything escaped. `records`: at least one; `sources`: names of the files they came from."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(files("controller.report").joinpath("page.html").read_text("utf-8"))
    requests = len({record.request for record in records})
    return template.render(
        policies=", ".join(dict.fromkeys(record.policy for record in records if record.policy)) or "unnamed policy",
        sources=", ".join(sources),
        rounds=len(records),
        requests=requests,
        shown=min(len(records), MOST_ROUNDS_DRAWN),
        numbers=_numbers(records),
        timeline=Timeline(records).figures(),
        details=(acceptance_by_position(records), accepted_histogram(records)),
        costs=costs(records),
        settings=_settings(records),
    )


def _numbers(records: Sequence[RoundRecord]) -> list[Number]:
    outcomes = [record.outcome for record in records]
    rounds = len(outcomes)
    accepted = sum(outcome.accepted_len for outcome in outcomes)
    drafted = sum(outcome.drafted_len for outcome in outcomes)
    time_s = sum(outcome.round_ns for outcome in outcomes) / 1e9
    tokens = accepted + rounds
    numbers = [
        Number(f"{tokens / rounds:.2f}", "", "tokens a round", "accepted ones and the target's own"),
        Number(f"{drafted / rounds:.2f}", "", "drafted a round", "mean chunk length"),
        Number(
            f"{100 * accepted / drafted:.0f}" if drafted else "–", "%", "acceptance", "accepted of all drafted tokens"
        ),
        Number(f"{100 * _plain_share(records):.0f}", "%", "plain rounds", "rounds without a draft"),
    ]
    if time_s:
        speed = Number(f"{tokens / time_s:.1f}", "", "tokens/s", "of one request, prompt reading included")
        time = Number(f"{1e3 * time_s / rounds:.1f}", "ms", "mean round", "as the controller saw it")
        numbers = [speed, *numbers, time]
    return numbers


def _plain_share(records: Sequence[RoundRecord]) -> float:
    return sum(not record.outcome.drafted_len for record in records) / len(records)


def _settings(records: Sequence[RoundRecord]) -> list[tuple[str, str]]:
    """Every setting with all its values, and what the rounds themselves tell."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        found.setdefault("policy", {})[record.policy or "unnamed"] = None
        for name, value in record.settings.items():
            found.setdefault(name, {})[value if isinstance(value, str) else f"{value:g}"] = None
    batches = [record.outcome.batch_size for record in records]
    lengths = [record.plan.max_tokens for record in records]
    return [
        *((name, _listed(list(values))) for name, values in found.items()),
        ("verifier's batch", _range(batches)),
        ("planned length", _range(lengths)),
    ]


def _listed(values: Sequence[str]) -> str:
    more = f" and {len(values) - _MOST_VALUES} more" if len(values) > _MOST_VALUES else ""
    return ", ".join(values[:_MOST_VALUES]) + more


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"
