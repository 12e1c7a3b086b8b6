"""Numbers that describe the laws of rows: entropies, probabilities, divergences, cut laws. Only where wanted.

They are of warped laws; of one-hot ones, at temperature 0, the caller gives the laws at temperature 1 without cuts.
All measures of a row are numbers in one table row, so that they cross from the device to the host together.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from speculative.engine.interface import JudgeRequest, PickRequest
from speculative.sampling import divergence_rows, rejection
from speculative.sampling.types import Signal, Signals, SparseLaw
from speculative.sampling.warp import WarpedRows

ENTROPY, PROB, KL, JS_DISTANCE, HEAD = range(5)
"""Columns: entropy and KL in nats, the probability of one token; from HEAD on the head of the cut law."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be measured of one row's law; `draft` is the draft's law there, for divergences."""

    entropy: bool = False
    prob: bool = False
    kl: bool = False
    js_distance: bool = False
    law: bool = False
    draft: SparseLaw | None = None

    @property
    def needs_totals(self) -> bool:
        """Whether the sum of the law's weights is needed."""
        return self.prob or self.kl or self.js_distance or self.law


NOTHING = Wanted()
ENTROPY_ONLY = Wanted(entropy=True)


def wanted_of_picks(request: PickRequest) -> list[Wanted]:
    """For each row of a request.

    The last row, the verifier's own, is not told of; it is measured like the one before it, so that all rows of a batch
    can be computed together.
    """
    signals, laws = request.signals, request.draft_laws
    if not (signals or request.want_entropy or request.want_prob or request.want_law):
        return [NOTHING] * request.num_rows
    return [
        Wanted(
            entropy=request.want_entropy or Signal.TARGET_ENTROPY in signals,
            prob=request.want_prob,
            kl=Signal.KL in signals,
            js_distance=Signal.JS_DISTANCE in signals,
            law=request.want_law,
            draft=laws[min(offset, len(laws) - 1)] if laws else None,
        )
        for offset in range(request.num_rows)
    ]


def wanted_of_judgement(request: JudgeRequest) -> list[Wanted]:
    """For each draft token of a request."""
    signals, by_distance = request.signals, request.adasd is not None
    if not (signals or by_distance):
        return [NOTHING] * len(request.laws)
    return [
        Wanted(
            entropy=Signal.TARGET_ENTROPY in signals,
            prob=by_distance,
            kl=Signal.KL in signals,
            js_distance=by_distance or Signal.JS_DISTANCE in signals,
            draft=law,
        )
        for law in request.laws
    ]


def table_width(wanted: Iterable[Wanted]) -> int:
    """Columns that all rows of one transfer need; 0 where nothing is wanted of any."""
    width = 0
    for each in wanted:
        if each.law:
            return HEAD + rejection.HEAD_SIZE
        if each is not NOTHING:
            width = HEAD
    return width


def measure(laws: WarpedRows, wanted: Sequence[Wanted], token_ids: Tensor | None, width: int) -> Tensor:
    """Measures of each row, zero where not wanted: [R, width] float64.

    `token_ids` [R] are the tokens whose probability may be wanted.
    """
    table = torch.zeros((len(wanted), width), dtype=torch.float64, device=laws.scores.device)
    with_entropy = [place for place, each in enumerate(wanted) if each.entropy]
    log_totals = None
    if len(with_entropy) == len(wanted):
        log_totals, table[:, ENTROPY] = laws.log_totals_and_entropies()
    else:
        log_totals = laws.log_totals() if any(each.needs_totals for each in wanted) else None
        if with_entropy:
            table[with_entropy, ENTROPY] = laws.take(with_entropy).entropies_nats()
    if log_totals is not None:
        _measure_probs(table, laws, wanted, token_ids, log_totals)
        _compare(table, laws, wanted, log_totals)
    return table


def signals_of(wanted: frozenset[Signal], measures: Sequence[Sequence[float]]) -> Signals:
    """The signals of draft tokens, from the measures of their rows."""
    return Signals(
        kl_nats=tuple(each[KL] for each in measures) if Signal.KL in wanted else (),
        js_distance=tuple(each[JS_DISTANCE] for each in measures) if Signal.JS_DISTANCE in wanted else (),
        target_entropies_nats=tuple(each[ENTROPY] for each in measures) if Signal.TARGET_ENTROPY in wanted else (),
    )


def _measure_probs(
    table: Tensor, laws: WarpedRows, wanted: Sequence[Wanted], token_ids: Tensor | None, log_totals: Tensor
) -> None:
    """Writes probabilities and heads of laws where wanted."""
    with_law = [place for place, each in enumerate(wanted) if each.law]
    if with_law:
        table[with_law, HEAD:] = rejection.law_heads(laws.take(with_law), log_totals=log_totals[with_law])
    with_prob = [place for place, each in enumerate(wanted) if each.prob]
    if with_prob:
        assert token_ids is not None
        table[with_prob, PROB] = laws.take(with_prob).probs_of(token_ids[with_prob], log_totals[with_prob])


def _compare(table: Tensor, laws: WarpedRows, wanted: Sequence[Wanted], log_totals: Tensor) -> None:
    """Writes the divergences of `laws` from the draft's laws where wanted."""
    drafts = {p: each.draft for p, each in enumerate(wanted) if each.draft and (each.kl or each.js_distance)}
    if not drafts:
        return
    places = list(drafts)
    merged = divergence_rows.merge(laws.take(places), list(drafts.values()), log_totals[places])
    if any(wanted[place].kl for place in places):
        table[places, KL] = divergence_rows.kl_divergences_nats(merged)
    if any(wanted[place].js_distance for place in places):
        table[places, JS_DISTANCE] = divergence_rows.js_distances(merged)
