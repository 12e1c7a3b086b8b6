"""The rows of a model that runs on torch: every request of a step is answered in one batch.

Rows of all requests are warped together, in groups of like parameters (sampling/warp.py); greedy rows cost one argmax
and no random number. Picks cross from the device to the host once; judgements twice, because the row that the next
token is drawn from is known only when the draft tokens have been judged. Measures of the laws (entropies, divergences,
cut laws) are computed where wanted only, and cross with the picks.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from speculative.engine import measures
from speculative.engine.interface import (
    Draw,
    DrawRequest,
    Judgement,
    JudgeRequest,
    PickRequest,
    Picks,
    RowOutcome,
    RowRequest,
)
from speculative.engine.measures import ENTROPY_ONLY, NOTHING, Wanted
from speculative.sampling import acceptance, coupling, distribution, rejection
from speculative.sampling.adasd import Evidence
from speculative.sampling.counter import Stream, row_key
from speculative.sampling.types import SamplingParams
from speculative.sampling.warp import WarpedRows, warp_rows

_NEUTRAL = SamplingParams()


@dataclass(frozen=True, slots=True)
class _Wish:
    """One token wanted of one row, under a row key; and measures of the row's law."""

    row: int
    params: SamplingParams
    key: int
    wanted: Wanted = NOTHING


@dataclass(frozen=True, slots=True)
class _Answer:
    """The winner of a wish's race, and measures of its law."""

    token_id: int
    measures: Sequence[float]


class TorchRows:
    """The Rows (interface.py) of logits [R, V'], in any floating type; ids from `vocab_size` on are padding.

    Computes in float32. Raises FloatingPointError if a row's largest logit is not finite: the model is broken, and any
    token would be made up. Entropies at temperature 0 are those at temperature 1 without cuts: the one-hot law's own
    is always zero, and would tell a stop rule nothing.
    """

    def __init__(self, logits: Tensor, vocab_size: int) -> None:
        self._logits = logits[:, :vocab_size]

    @torch.inference_mode()
    def answer(self, requests: Sequence[RowRequest]) -> list[RowOutcome]:
        """One outcome for each request, in order."""
        picks = {number: each for number, each in enumerate(requests) if isinstance(each, PickRequest)}
        draws = {number: each for number, each in enumerate(requests) if isinstance(each, DrawRequest)}
        judges = {number: each for number, each in enumerate(requests) if isinstance(each, JudgeRequest)}
        outcomes: dict[int, RowOutcome] = {}
        outcomes.update(zip(picks, self._pick(list(picks.values())), strict=True))
        outcomes.update(zip(draws, self._draw(list(draws.values())), strict=True))
        outcomes.update(zip(judges, self._judge(list(judges.values())), strict=True))
        return [outcomes[number] for number in range(len(requests))]

    def _pick(self, requests: Sequence[PickRequest]) -> list[Picks]:
        wishes = [
            _Wish(
                request.first_row + offset,
                request.params,
                0 if request.params.greedy else row_key(request.seed, Stream.RACE, request.position + offset),
                wanted,
            )
            for request in requests
            for offset, wanted in enumerate(measures.wanted_of_picks(request))
        ]
        answers = iter(self._race(self._warp(wishes), wishes))
        return [_picks(request, list(itertools.islice(answers, request.num_rows))) for request in requests]

    def _draw(self, requests: Sequence[DrawRequest]) -> list[Draw]:
        keys = [row_key(each.seed, Stream.DRAFT, each.position, each.base_len) for each in requests]
        wishes = [
            _Wish(each.first_row, each.params, key, ENTROPY_ONLY) for each, key in zip(requests, keys, strict=True)
        ]
        groups = self._warp(wishes)
        tables = [
            torch.cat(
                [
                    group.finite.double()[:, None],
                    self._measures(group, wishes, measures.HEAD),
                    rejection.law_heads(group),
                ],
                -1,
            )
            for group in groups
        ]
        outcomes = {}
        for number, (finite, *measured) in _to_host(groups, tables):
            _check_finite(finite)
            law = rejection.make_law(measured[measures.HEAD :])
            outcomes[number] = Draw(distribution.draw(law, keys[number]), law, measured[measures.ENTROPY])
        return [outcomes[number] for number in range(len(requests))]

    def _judge(self, requests: Sequence[JudgeRequest]) -> list[Judgement]:
        wishes, drafts, accepted_lens, signals = [], [], [], []
        for request, tokens in zip(requests, self._looks(requests), strict=True):
            laws = [distribution.probabilities(law) for law in request.laws]
            draft_probs = [law.get(each, 0.0) for law, each in zip(laws, request.draft_token_ids, strict=True)]
            accepted_len = _accepted_len(request, draft_probs, tokens)
            key = acceptance.recover_key(request.seed, request.base_len, accepted_len)
            wishes.append(_Wish(request.first_row + accepted_len, request.params, key))
            drafts.append(laws[accepted_len] if accepted_len < len(laws) else {})
            accepted_lens.append(accepted_len)
            signals.append(measures.signals_of(request.signals, [token.measures for token in tokens]))
        groups = [rejection.residual_rows(group, drafts, self._logits.shape[-1]) for group in self._warp(wishes)]
        recovered = [answer.token_id for answer in self._race(groups, wishes)]
        return list(itertools.starmap(Judgement, zip(accepted_lens, recovered, signals, strict=True)))

    def _looks(self, requests: Sequence[JudgeRequest]) -> list[list["_Look"]]:
        """The target's law at each draft token, as far as judging it and telling of it needs."""
        wishes = [
            _Wish(request.first_row + offset, request.params, 0, wanted)
            for request in requests
            for offset, wanted in enumerate(measures.wanted_of_judgement(request))
        ]
        drafted = torch.tensor(
            [token_id for request in requests for token_id in request.draft_token_ids], device=self._logits.device
        )
        groups, width = self._warp(wishes), _width(wishes)
        tables = []
        for group in groups:
            own = drafted[list(group.rows)]
            lead = torch.stack([group.finite.double(), group.probs_of(own)], dim=-1)
            tables.append(torch.cat([lead, self._measures(group, wishes, width, own)], dim=-1))
        looks = {}
        for number, (finite, prob, *measured) in _to_host(groups, tables):
            _check_finite(finite)
            looks[number] = _Look(prob, measured)
        numbers = iter(range(len(wishes)))
        return [[looks[next(numbers)] for _ in request.draft_token_ids] for request in requests]

    def _warp(self, wishes: Sequence[_Wish]) -> list[WarpedRows]:
        return list(warp_rows(self._logits, [each.row for each in wishes], [each.params for each in wishes]))

    def _race(self, groups: Sequence[WarpedRows], wishes: Sequence[_Wish]) -> list[_Answer]:
        """The answer to each wish; `groups` hold the laws of all."""
        width = _width(wishes)
        tables = []
        for group in groups:
            result = _run_race(group, [wishes[number].key for number in group.rows])
            lead = torch.stack([group.finite.double(), result.certified.double(), result.token_ids.double()], dim=-1)
            tables.append(torch.cat([lead, self._measures(group, wishes, width, result.token_ids)], dim=-1))
        answers = {}
        for number, (finite, certified, token_id, *measured) in _to_host(groups, tables):
            _check_finite(finite)
            answers[number] = _Answer(int(token_id), measured)
            if not certified:
                answers[number] = _race_again(groups, number, wishes[number], measured)
        return [answers[number] for number in range(len(wishes))]

    def _measures(
        self, group: WarpedRows, wishes: Sequence[_Wish], width: int, token_ids: Tensor | None = None
    ) -> Tensor:
        """Measures of a group's laws: [R, width] float64."""
        if not width:
            return group.scores.new_empty((len(group.rows), 0), dtype=torch.float64)
        own = [wishes[number] for number in group.rows]
        wanted = [wish.wanted for wish in own]
        laws = group
        if group.one_hot and measures.table_width(wanted):
            laws = self._warp([replace(wish, params=_NEUTRAL) for wish in own])[0]
        return measures.measure(laws, wanted, token_ids, width)


def _width(wishes: Sequence[_Wish]) -> int:
    return measures.table_width(wish.wanted for wish in wishes)


@dataclass(frozen=True, slots=True)
class _Look:
    """What the target's law says of a draft token."""

    prob: float
    measures: Sequence[float]


def _picks(request: PickRequest, answers: Sequence[_Answer]) -> Picks:
    told = [answer.measures for answer in answers]
    return Picks(
        token_ids=tuple(answer.token_id for answer in answers),
        entropies_nats=tuple(each[measures.ENTROPY] for each in told) if request.want_entropy else (),
        probs=tuple(each[measures.PROB] for each in told) if request.want_prob else (),
        laws=tuple(rejection.make_law(each[measures.HEAD :]) for each in told) if request.want_law else (),
        signals=measures.signals_of(request.signals, told[:-1]),
    )


def _accepted_len(request: JudgeRequest, draft_probs: Sequence[float], tokens: Sequence[_Look]) -> int:
    if request.adasd is None:
        target_probs = [token.prob for token in tokens]
        return acceptance.rejection_accepted_len(
            draft_probs, target_probs, seed=request.seed, base_len=request.base_len
        )
    evidence = [
        Evidence(draft_prob, token.prob, token.measures[measures.JS_DISTANCE], token.measures[measures.PROB] > 0.0)
        for draft_prob, token in zip(draft_probs, tokens, strict=True)
    ]
    return request.adasd.accepted_len(evidence, seed=request.seed, base_len=request.base_len)


def _run_race(group: WarpedRows, keys: Sequence[int]) -> coupling.RaceResult:
    if group.token_ids is None:
        return coupling.race(group.scores, keys)
    certain = torch.ones_like(group.finite)
    if group.one_hot:
        return coupling.RaceResult(group.token_ids[:, 0], certain)
    return coupling.RaceResult(coupling.race_exact(group.scores, keys, group.token_ids), certain)


def _race_again(groups: Sequence[WarpedRows], number: int, wish: _Wish, measured: Sequence[float]) -> _Answer:
    """The answer to one wish, for certain; `measured` belongs to the doubtful answer."""
    group = next(each for each in groups if number in each.rows)
    row = group.take([group.rows.index(number)])
    winner = coupling.race_exact(row.scores, [wish.key])
    if wish.wanted.prob:
        measured = list(measured)
        measured[measures.PROB] = float(row.probs_of(winner))
    return _Answer(int(winner), measured)


def _to_host(groups: Sequence[WarpedRows], tables: Sequence[Tensor]) -> Iterator[tuple[int, list[float]]]:
    """Wish number and row of every table [R, C], all in one transfer."""
    if not groups:
        return
    numbers = [number for group in groups for number in group.rows]
    yield from zip(numbers, torch.cat(list(tables)).tolist(), strict=True)


def _check_finite(finite: float) -> None:
    if not finite:
        raise FloatingPointError("the model's logits are not finite")
