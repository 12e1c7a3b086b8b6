"""The rows of a model that runs on torch: every request of a step is answered in one batch.

Rows of all requests are warped together, in groups of like parameters (sampling/warp.py); greedy rows cost one argmax
and no random number. Picks cross from the device to the host once; judgements twice, because the row that the next
token is drawn from is known only when the draft tokens have been judged.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

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
from speculative.sampling import acceptance, coupling, distribution, rejection
from speculative.sampling.counter import Stream, row_key
from speculative.sampling.types import SamplingParams
from speculative.sampling.warp import WarpedRows, warp_rows

_NEUTRAL = SamplingParams()


@dataclass(frozen=True, slots=True)
class _Wish:
    """One token wanted of one row, under a row key."""

    row: int
    params: SamplingParams
    key: int
    want_entropy: bool = False


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
                request.want_entropy,
            )
            for request in requests
            for offset in range(request.num_rows)
        ]
        answers = iter(self._race(self._warp(wishes), wishes))
        outcomes = []
        for request in requests:
            own = list(itertools.islice(answers, request.num_rows))
            entropies = tuple(entropy for _, entropy in own) if request.want_entropy else ()
            outcomes.append(Picks(tuple(token_id for token_id, _ in own), entropies))
        return outcomes

    def _draw(self, requests: Sequence[DrawRequest]) -> list[Draw]:
        keys = [row_key(each.seed, Stream.DRAFT, each.position, each.base_len) for each in requests]
        wishes = [_Wish(each.first_row, each.params, key, True) for each, key in zip(requests, keys, strict=True)]
        groups = self._warp(wishes)
        tables = []
        for group in groups:
            lead = torch.stack([group.finite.double(), self._entropies(group, wishes)], dim=-1)
            tables.append(torch.cat([lead, rejection.law_heads(group)], dim=-1))
        outcomes = {}
        for number, (finite, entropy, *head) in _to_host(groups, tables):
            _check_finite(finite)
            law = rejection.make_law(head)
            outcomes[number] = Draw(distribution.draw(law, keys[number]), law, entropy)
        return [outcomes[number] for number in range(len(requests))]

    def _judge(self, requests: Sequence[JudgeRequest]) -> list[Judgement]:
        wishes, drafts, accepted_lens = [], [], []
        for request, target_probs in zip(requests, self._target_probs(requests), strict=True):
            laws = [distribution.probabilities(law) for law in request.laws]
            draft_probs = [law.get(each, 0.0) for law, each in zip(laws, request.draft_token_ids, strict=True)]
            seed, base_len = request.seed, request.base_len
            accepted_len = acceptance.rejection_accepted_len(draft_probs, target_probs, seed=seed, base_len=base_len)
            key = acceptance.recover_key(seed, base_len, accepted_len)
            wishes.append(_Wish(request.first_row + accepted_len, request.params, key))
            drafts.append(laws[accepted_len] if accepted_len < len(laws) else {})
            accepted_lens.append(accepted_len)
        groups = [rejection.residual_rows(group, drafts, self._logits.shape[-1]) for group in self._warp(wishes)]
        recovered = [token_id for token_id, _ in self._race(groups, wishes)]
        return list(itertools.starmap(Judgement, zip(accepted_lens, recovered, strict=True)))

    def _target_probs(self, requests: Sequence[JudgeRequest]) -> list[list[float]]:
        """The warped target's probability of each draft token."""
        wishes = [
            _Wish(request.first_row + offset, request.params, 0)
            for request in requests
            for offset in range(len(request.draft_token_ids))
        ]
        drafted = torch.tensor(
            [token_id for request in requests for token_id in request.draft_token_ids], device=self._logits.device
        )
        groups = self._warp(wishes)
        tables = []
        for group in groups:
            log_probs = group.scores_of(drafted[list(group.rows)]) - group.log_totals()
            tables.append(torch.stack([group.finite.double(), log_probs.exp()], dim=-1))
        probs = {}
        for number, (finite, prob) in _to_host(groups, tables):
            _check_finite(finite)
            probs[number] = prob
        numbers = iter(range(len(wishes)))
        return [[probs[next(numbers)] for _ in request.draft_token_ids] for request in requests]

    def _warp(self, wishes: Sequence[_Wish]) -> list[WarpedRows]:
        return list(warp_rows(self._logits, [each.row for each in wishes], [each.params for each in wishes]))

    def _race(self, groups: Sequence[WarpedRows], wishes: Sequence[_Wish]) -> list[tuple[int, float]]:
        """(winner, entropy or 0) of each wish; `groups` hold the laws of all."""
        tables = []
        for group in groups:
            result = _run_race(group, [wishes[number].key for number in group.rows])
            columns = [group.finite, result.certified, result.token_ids, self._entropies(group, wishes)]
            tables.append(torch.stack([column.double() for column in columns], dim=-1))
        answers = {}
        for number, (finite, certified, token_id, entropy) in _to_host(groups, tables):
            _check_finite(finite)
            winner = int(token_id) if certified else _race_again(groups, number, wishes[number].key)
            answers[number] = winner, entropy
        return [answers[number] for number in range(len(wishes))]

    def _entropies(self, group: WarpedRows, wishes: Sequence[_Wish]) -> Tensor:
        """Entropies of a group's laws where wanted, else 0: [R] float64."""
        entropies = torch.zeros(len(group.rows), dtype=torch.float64, device=self._logits.device)
        wanted = [place for place, number in enumerate(group.rows) if wishes[number].want_entropy]
        if wanted:
            laws = group.take(wanted)
            if group.one_hot:
                laws = self._warp([replace(wishes[number], params=_NEUTRAL) for number in laws.rows])[0]
            entropies[wanted] = laws.entropies_nats()
        return entropies


def _run_race(group: WarpedRows, keys: Sequence[int]) -> coupling.RaceResult:
    if group.token_ids is None:
        return coupling.race(group.scores, keys)
    certain = torch.ones_like(group.finite)
    if group.one_hot:
        return coupling.RaceResult(group.token_ids[:, 0], certain)
    return coupling.RaceResult(coupling.race_exact(group.scores, keys, group.token_ids), certain)


def _race_again(groups: Sequence[WarpedRows], number: int, key: int) -> int:
    """The winner of one wish's row, for certain."""
    group = next(each for each in groups if number in each.rows)
    return int(coupling.race_exact(group.take([group.rows.index(number)]).scores, [key]))


def _to_host(groups: Sequence[WarpedRows], tables: Sequence[Tensor]) -> Iterator[tuple[int, list[float]]]:
    """Wish number and row of every table [R, C], all in one transfer."""
    if not groups:
        return
    numbers = [number for group in groups for number in group.rows]
    yield from zip(numbers, torch.cat(list(tables)).tolist(), strict=True)


def _check_finite(finite: float) -> None:
    if not finite:
        raise FloatingPointError("the model's logits are not finite")
