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
from speculative.sampling import acceptance, counter, distribution
from speculative.sampling.counter import Stream
from speculative.sampling.types import SamplingParams


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
        entropies = tuple(entropy_nats(law) for law in laws) if request.want_entropy else ()
        return Picks(tuple(picked), entropies)

    def _draw(self, request: DrawRequest) -> Draw:
        law = self._warped(request.first_row, request.params)
        sparse = distribution.sparsify(law)
        key = counter.row_key(request.seed, Stream.DRAFT, request.position, request.base_len)
        return Draw(distribution.draw(sparse, key), sparse, entropy_nats(law))

    def _judge(self, request: JudgeRequest) -> Judgement:
        def target(index: int) -> Mapping[int, float]:
            return self._warped(request.first_row + index, request.params)

        return Judgement(
            *acceptance.judge(
                request.draft_token_ids, request.laws, target, seed=request.seed, base_len=request.base_len
            )
        )

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
