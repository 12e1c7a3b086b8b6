"""`outrider replay`: what policies would have made of recorded rounds, next to off and fixed lengths."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from controller.cli.failures import WRONG_REQUEST, CommandError
from controller.policies.guard import GuardSettings
from controller.policies.recorded_costs import CostModel, measured_costs
from controller.policies.registry import DEFAULT_POLICY, GUARD, PolicyFactory, make_policy, policy_parameters
from controller.policies.replay import ReplayResult, RequestTrace, replay, traces_of
from controller.policies.trace import RoundRecord

HELP = (
    "Replay recorded rounds under other policies and costs, without a model.\n\n"
    "A trace recorded with long chunks tells what every shorter chunk would have brought. Behind the end of a recorded"
    " chunk it tells nothing: what is drafted there is assumed, and the table says how much of a result that is. To"
    " record: outrider generate --trace FILE --policy fixed --policy-param length=16 --policy-param guard=0"
    " --no-prompt-lookup\n\n"
    "Off and the best fixed length are always in the table, without the guard; policies have the guard unless it is"
    " switched off with --policy-param guard=0."
)
"""What `outrider replay --help` says."""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What to replay; no policies: the default one. `costs` None: those that were recorded."""

    policies: tuple[str, ...]
    parameters: Mapping[str, float]
    draft_ms: float | None
    verify_ms: tuple[float, float] | None
    network_ms: float | None
    batch_size: int
    max_draft_tokens: int


@dataclass(frozen=True, slots=True)
class Row:
    """One policy's result."""

    policy: str
    result: ReplayResult


@dataclass(frozen=True, slots=True)
class Comparison:
    """All results at some costs."""

    costs: CostModel
    traces: Sequence[RequestTrace]
    rows: tuple[Row, ...]
    off: Row
    best_fixed: Row


def compare(records: Sequence[RoundRecord], plan: ReplayPlan) -> Comparison:
    """Replays the policies, off, and every fixed length. CommandError or InvalidRequestError for a wrong plan."""
    _check_parameters(plan)
    costs = _costs(records, plan)
    traces = traces_of(records)
    run = partial(
        replay,
        traces,
        costs=costs.costs,
        batch_size=plan.batch_size,
        max_draft_tokens=plan.max_draft_tokens,
        temperature=_temperature(records),
    )
    rows = []
    for name in plan.policies or (DEFAULT_POLICY,):
        pair = PolicyFactory(GuardSettings())
        rows.append(Row(name, run(partial(pair.make, name, _own(name, plan.parameters)))))
    off = Row("off", run(partial(make_policy, "off", {})))
    fixed = [
        Row(f"fixed {length}", run(partial(make_policy, "fixed", {"length": length})))
        for length in range(1, plan.max_draft_tokens + 1)
    ]
    best = max(fixed, key=lambda row: row.result.tokens_per_s)
    return Comparison(costs, traces, tuple(rows), off, best)


def _check_parameters(plan: ReplayPlan) -> None:
    for name in plan.parameters:
        if not any(name in _names(policy) for policy in plan.policies or (DEFAULT_POLICY,)):
            raise CommandError(f"none of the policies has a parameter {name!r}", "", WRONG_REQUEST)


def _names(policy: str) -> set[str]:
    return {GUARD.name, *(parameter.name for parameter in policy_parameters(policy))}


def _own(policy: str, parameters: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in parameters.items() if name in _names(policy)}


def _costs(records: Sequence[RoundRecord], plan: ReplayPlan) -> CostModel:
    measured = measured_costs(records)
    if measured is None:
        if plan.draft_ms is None or plan.verify_ms is None:
            advice = "give --draft-ms and --verify-ms"
            raise CommandError("these traces do not tell what drafting and verifying cost", advice, WRONG_REQUEST)
        measured = CostModel(0.0, 0.0)
    draft_ms = measured.draft_ms if plan.draft_ms is None else plan.draft_ms
    verify_ms = plan.verify_ms or (measured.verify_ms, measured.verify_token_ms)
    network_ms = measured.network_ms if plan.network_ms is None else plan.network_ms
    if verify_ms[0] <= 0.0:
        raise CommandError("a forward of the verifier must take time", "give --verify-ms", WRONG_REQUEST)
    return CostModel(draft_ms, *verify_ms, network_ms)


def _temperature(records: Sequence[RoundRecord]) -> float:
    """The temperature of the recording; where it was not recorded, 1, at which a temperature changes nothing."""
    recorded = [record.settings["temperature"] for record in records if "temperature" in record.settings]
    return float(recorded[0]) if recorded else 1.0


def parse_verify_ms(text: str) -> tuple[float, float]:
    """BASE or BASE,EXTRA in milliseconds."""
    base, _, extra = text.partition(",")
    try:
        values = float(base), float(extra or 0.0)
    except ValueError:
        values = (-1.0, 0.0)
    if not all(0.0 <= value < 1e9 for value in values):
        raise typer.BadParameter(f"{text!r} is not MS or MS,EXTRA_MS", param_hint="--verify-ms")
    return values


def show(comparison: Comparison, out: Console, notes: Console) -> None:
    """A table, and what to know about it."""
    table = Table(box=None, pad_edge=False)
    table.add_column("policy", no_wrap=True)
    for title in ("tokens/s", "per round", "drafted", "accepted", "x off", "x fixed", "assumed"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in (*comparison.rows, comparison.best_fixed, comparison.off):
        numbers = _numbers(row, comparison)
        table.add_row(
            row.policy if row is not comparison.best_fixed else f"{row.policy} (best)",
            f"{numbers['tokens_per_s']:.1f}",
            f"{numbers['tokens_per_round']:.2f}",
            f"{numbers['drafted_per_round']:.2f}",
            f"{100 * numbers['acceptance']:.1f} %" if row.result.drafted else "-",
            f"{numbers['ratio_to_off']:.2f}",
            f"{numbers['ratio_to_best_fixed']:.2f}",
            f"{100 * numbers['assumed']:.1f} %" if row.result.drafted else "-",
        )
    out.print(table)
    costs = comparison.costs
    positions = sum(len(trace.positions) for trace in comparison.traces)
    notes.print(
        f"{len(comparison.traces)} requests, {positions} tokens · draft {costs.draft_ms:.3g} ms a token · verify"
        f" {costs.verify_ms:.3g} ms + {costs.verify_token_ms:.3g} ms a position more · network"
        f" {costs.network_ms:.3g} ms a round trip",
        style="dim",
        highlight=False,
        soft_wrap=True,
    )
    for remark in remarks(comparison):
        notes.print(remark, style="yellow", highlight=False, soft_wrap=True)


def remarks(comparison: Comparison) -> list[str]:
    """What a reader must know: which results rest on more than the traces tell."""
    beyond = [row.policy for row in (*comparison.rows, comparison.best_fixed) if row.result.beyond]
    found = []
    if beyond:
        found.append(
            f"{', '.join(beyond)}: looked beyond what the traces tell ('assumed' is the share of drafted"
            " tokens whose match or signals are assumed); record with longer chunks: --policy fixed"
            " --policy-param length=16 --policy-param guard=0 --no-prompt-lookup"
        )
    steps = (position.step for trace in comparison.traces for position in trace.positions)
    has_kl = any(step.kl_nats is not None for step in steps)
    needy = [row.policy for row in comparison.rows if "dsde" in row.policy]
    if needy and not has_kl:
        found.append(f"{', '.join(needy)}: the traces have no KL, so its length rule is blind")
    return found


def as_json(comparison: Comparison) -> str:
    """Everything as one JSON object."""
    rows = [*comparison.rows, comparison.best_fixed, comparison.off]
    message: dict[str, Any] = {
        "requests": len(comparison.traces),
        "tokens": sum(len(trace.positions) for trace in comparison.traces),
        "costs": dataclasses.asdict(comparison.costs),
        "policies": [{"policy": row.policy, **_numbers(row, comparison)} for row in rows],
        "best_fixed": comparison.best_fixed.policy,
        "remarks": remarks(comparison),
    }
    return json.dumps(message)


def _numbers(row: Row, comparison: Comparison) -> dict[str, float]:
    result = row.result
    return {
        "tokens_per_s": result.tokens_per_s,
        "tokens_per_round": result.tokens_per_round,
        "drafted_per_round": result.drafted / result.rounds if result.rounds else 0.0,
        "acceptance": result.acceptance,
        "ratio_to_off": result.tokens_per_s / comparison.off.result.tokens_per_s,
        "ratio_to_best_fixed": result.tokens_per_s / comparison.best_fixed.result.tokens_per_s,
        "assumed": result.beyond / result.drafted if result.drafted else 0.0,
        "rounds": result.rounds,
        "drafted": result.drafted,
        "accepted": result.accepted,
    }
