"""Picks, draws and judgements on emulated laws, by the rules of sampling/ and without torch."""

import math
from collections.abc import Mapping, Sequence

from speculative.engine.emulated_laws import RawLaw
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
from speculative.sampling import acceptance, counter, distribution, divergence
from speculative.sampling.adasd import Evidence
from speculative.sampling.counter import Stream
from speculative.sampling.types import SamplingParams, Signal, Signals, SparseLaw

_NEUTRAL = SamplingParams()


class EmulatedRows:
    """The Rows (interface.py) of one step; ids from `vocab_size` on are padding and never come out."""

    def __init__(self, laws: Sequence[RawLaw], vocab_size: int) -> None:
        self._laws = laws
        self._vocab_size = vocab_size

    def answer(self, requests: Sequence[RowRequest]) -> list[RowOutcome]:
        """One outcome for each request, in order."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: RowRequest) -> RowOutcome:
        match request:
            case PickRequest():
                return self._pick(request)
            case DrawRequest():
                return self._draw(request)
            case JudgeRequest():
                return self._judge(request)

    def _pick(self, request: PickRequest) -> Picks:
        laws = [self._warped(request.first_row + index, request.params) for index in range(request.num_rows)]
        picked = [
            counter.race(counter.row_key(request.seed, Stream.RACE, request.position + index), law.items())
            for index, law in enumerate(laws)
        ]
        if not (request.want_entropy or request.want_prob or request.want_law or request.signals):
            return Picks(tuple(picked), ())
        told = self._told(laws, request.first_row, request.params)
        return Picks(
            token_ids=tuple(picked),
            entropies_nats=tuple(map(entropy_nats, told)) if request.want_entropy else (),
            probs=tuple(map(dict.__getitem__, told, picked)) if request.want_prob else (),
            laws=tuple(map(distribution.sparsify, told)) if request.want_law else (),
            signals=_signals(request.signals, told[:-1], request.draft_laws),
        )

    def _draw(self, request: DrawRequest) -> Draw:
        law = self._warped(request.first_row, request.params)
        sparse = distribution.sparsify(law)
        key = counter.row_key(request.seed, Stream.DRAFT, request.position, request.base_len)
        (told,) = self._told([law], request.first_row, request.params)
        return Draw(distribution.draw(sparse, key), sparse, entropy_nats(told))

    def _judge(self, request: JudgeRequest) -> Judgement:
        laws = [self._warped(request.first_row + index, request.params) for index in range(len(request.laws) + 1)]
        seed, base_len, drafted = request.seed, request.base_len, request.draft_token_ids
        told = self._told(laws, request.first_row, request.params) if request.adasd or request.signals else []
        signals = _signals(request.signals, told[:-1], request.laws)
        if request.adasd is None:
            judged = acceptance.judge(drafted, request.laws, laws.__getitem__, seed=seed, base_len=base_len)
            return Judgement(*judged, signals)
        drafts = [distribution.probabilities(law) for law in request.laws]
        evidence = [
            Evidence(drafts[i].get(each, 0.0), laws[i].get(each, 0.0), _js(told[i], request.laws[i]), each in told[i])
            for i, each in enumerate(drafted)
        ]
        accepted_len = request.adasd.accepted_len(evidence, seed=seed, base_len=base_len)
        draft = drafts[accepted_len] if accepted_len < len(drafts) else {}
        key = acceptance.recover_key(seed, base_len, accepted_len)
        return Judgement(accepted_len, acceptance.recover(laws[accepted_len], draft, key), signals)

    def _told(
        self, laws: Sequence[dict[int, float]], first_row: int, params: SamplingParams
    ) -> Sequence[dict[int, float]]:
        """The laws that measures are of: the warped ones; at temperature 0 those at temperature 1 without cuts."""
        return [self._warped(first_row + i, _NEUTRAL) for i in range(len(laws))] if params.greedy else laws

    def _warped(self, row: int, params: SamplingParams) -> dict[int, float]:
        raw = self._laws[row]
        real = {
            token_id: weight
            for token_id, weight in zip(raw.token_ids, raw.weights, strict=True)
            if token_id < self._vocab_size
        }
        return warp(real, params)


def warp(weights: Mapping[int, float], params: SamplingParams) -> dict[int, float]:
    """The warped law (id -> probability, most likely first) of positive `weights`, as warp.py does it on logits.

    At temperature 0 it is one-hot on the likeliest id, the lowest on a tie.
    """
    likeliest_first = sorted(weights.items(), key=lambda item: (-item[1], item[0]))
    if params.greedy:
        return {likeliest_first[0][0]: 1.0}
    top = math.log(likeliest_first[0][1])
    tempered = [(token_id, math.exp((math.log(w) - top) / params.temperature)) for token_id, w in likeliest_first]
    kept = _keep(tempered, params)
    total = math.fsum(weight for _, weight in kept)
    return {token_id: weight / total for token_id, weight in kept if weight > 0.0}


def entropy_nats(law: Mapping[int, float]) -> float:
    """Entropy of a law (id -> probability), in nats."""
    return -math.fsum(prob * math.log(prob) for prob in law.values() if prob > 0.0)


def _signals(wanted: frozenset[Signal], targets: Sequence[dict[int, float]], drafts: Sequence[SparseLaw]) -> Signals:
    pairs = list(zip(targets, drafts, strict=False))
    return Signals(
        kl_nats=tuple(divergence.kl_divergence_nats(_heads(target, draft), draft) for target, draft in pairs)
        if Signal.KL in wanted
        else (),
        js_distance=tuple(_js(target, draft) for target, draft in pairs) if Signal.JS_DISTANCE in wanted else (),
        target_entropies_nats=tuple(map(entropy_nats, targets)) if Signal.TARGET_ENTROPY in wanted else (),
    )


def _js(target: Mapping[int, float], draft: SparseLaw) -> float:
    return divergence.js_distance(_heads(target, draft), draft)


def _heads(target: Mapping[int, float], draft: SparseLaw) -> list[float]:
    """The target's probabilities of the draft law's ids."""
    return [target.get(token_id, 0.0) for token_id in draft.token_ids]


def _keep(tempered: list[tuple[int, float]], params: SamplingParams) -> list[tuple[int, float]]:
    """Top-k, then top-p, then min-p, on weights that fall from 1."""
    kept = tempered[: params.top_k] if params.top_k else tempered
    if params.top_p < 1.0:
        kept = _smallest_mass(kept, params.top_p * math.fsum(weight for _, weight in kept))
    return [(token_id, weight) for token_id, weight in kept if weight >= params.min_p]


def _smallest_mass(weights: list[tuple[int, float]], mass: float) -> list[tuple[int, float]]:
    """The first ids that together reach `mass`."""
    reached = 0.0
    for number, (_, weight) in enumerate(weights, start=1):
        reached += weight
        if reached >= mass:
            return weights[:number]
    return weights
