"""From logits to the law that tokens are drawn from: temperature, top-k, top-p, min-p, in that order, row by row.

The definitions are transformers' own, made exact where those leave something to the sort: tokens are ranked by logit,
the lower id first among equals, and

- top-k keeps the first k: exactly k, where transformers keeps every token that ties with the k-th;
- top-p keeps a token iff those before it have less than p of the mass that top-k left;
- min-p keeps a token iff its weight is at least `min_p` times the largest.

The first token always stays. Temperature 0 is the one-hot law on it. Positive temperatures of any size are safe: logits
are taken relative to the row's largest before they are divided.

A vocabulary is long, and the sets that top-k and top-p keep are short. So rows are sorted only as far as needed: to the
k-th token, or until p is reached (256 tokens, then 4,096, then all). Rows of equal need are computed together.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from speculative.sampling import selection
from speculative.sampling.types import SamplingParams

_LEAST_WIDTH, _WIDTH_FACTOR = 64, 4  # widths of sorted sets, for top-k
_TOP_P_WIDTHS = (256, 4096)
_GREEDY, _UNSORTED = 0, -1  # instead of a width
_FLOAT32 = torch.finfo(torch.float32)


@dataclass(frozen=True, slots=True)
class WarpedRows:
    """Some rows' laws, as scores: logarithms of weights relative to the largest, -inf where cut."""

    rows: tuple[int, ...]
    """Which rows, of those that were asked for."""
    scores: Tensor
    """[R, C] float32; at most 0."""
    token_ids: Tensor | None
    """[R, C] int64, the ids of the columns, most likely first; None where column v is id v."""
    finite: Tensor
    """[R] bool: whether the row's largest logit is a number; what else is said of other rows is void."""

    @property
    def one_hot(self) -> bool:
        """Whether each law is known to have one token only."""
        return self.token_ids is not None and self.scores.shape[-1] == 1

    def take(self, places: Sequence[int]) -> "WarpedRows":
        """Some of the rows, in order."""
        if len(places) == len(self.rows):
            return self
        token_ids = None if self.token_ids is None else self.token_ids[list(places)]
        return WarpedRows(
            tuple(self.rows[place] for place in places), self.scores[list(places)], token_ids, self.finite[list(places)]
        )

    def log_totals(self) -> Tensor:
        """Logarithm of the sum of the weights: [R] float64."""
        return selection.precise_sum(self.scores.exp()).log_()

    def entropies_nats(self) -> Tensor:
        """Entropy of each law: [R] float64."""
        return self.log_totals_and_entropies()[1]

    def log_totals_and_entropies(self) -> tuple[Tensor, Tensor]:
        """Both, for little more than one of them."""
        weights = self.scores.exp()
        total = selection.precise_sum(weights)
        # A weight of zero times a score of -inf would be no number.
        weighted = selection.precise_sum(weights.mul_(self.scores.clamp(min=_FLOAT32.min)))
        log_total = total.log()
        return log_total, log_total - weighted / total

    def scores_of(self, token_ids: Tensor) -> Tensor:
        """The scores of some ids of each row: [R, L] int64 -> [R, L] float32."""
        if self.token_ids is None:
            return self.scores.gather(-1, token_ids)
        found = self.token_ids[:, None, :] == token_ids[:, :, None]
        return self.scores[:, None, :].where(found, -torch.inf).amax(-1)

    def probs_of(self, token_ids: Tensor, log_totals: Tensor | None = None) -> Tensor:
        """The probability of one id for each row: [R] int64 -> [R] float64. `log_totals`, where they are known."""
        log_totals = self.log_totals() if log_totals is None else log_totals
        return (self.scores_of(token_ids[:, None]).squeeze(-1).double() - log_totals).exp_()

    def most_likely(self, count: int) -> tuple[Tensor, Tensor]:
        """(ids [R, c] int64, scores [R, c]) of the `count` most likely tokens, in order; c may be less than count."""
        if self.token_ids is not None:
            return self.token_ids[:, :count], self.scores[:, :count]
        return _ranked(self.scores, count)

    def dense(self, vocab_size: int) -> Tensor:
        """Scores by id: [R, vocab_size] float32."""
        if self.token_ids is None:
            return self.scores
        empty = self.scores.new_full((len(self.rows), vocab_size), -torch.inf)
        return empty.scatter_(-1, self.token_ids, self.scores)


def warp(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The laws of logits [R, V] (any floating type), each row by its own `params`, as scores by id: [R, V] float32."""
    result = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    for group in warp_rows(logits, range(len(params)), params):
        result[list(group.rows)] = group.dense(logits.shape[-1])
    return result


def warp_rows(logits: Tensor, rows: Sequence[int], params: Sequence[SamplingParams]) -> Iterator[WarpedRows]:
    """The laws of some `rows` of logits [R, V], one `params` for each; in groups that are computed together.

    `rows` of the groups count within the `rows` asked for; each is in exactly one group.
    """
    by_width: dict[int, list[int]] = {}
    for number, each in enumerate(params):
        by_width.setdefault(_width(each, logits.shape[-1]), []).append(number)
    for width, numbers in by_width.items():
        some = take_rows(logits, [rows[number] for number in numbers])
        some_params = [params[number] for number in numbers]
        if width == _GREEDY:
            value, index = selection.largest(some)
            yield WarpedRows(tuple(numbers), torch.zeros_like(some[:, :1]), index[:, None], value.isfinite())
        elif width == _UNSORTED:
            yield _unsorted(some, numbers, some_params)
        else:
            yield from _sorted(some, numbers, some_params, width)


def take_rows(logits: Tensor, rows: Sequence[int]) -> Tensor:
    """Some rows of logits [R, V], as float32; a view where that is possible."""
    first = rows[0]
    adjacent = all(row == first + place for place, row in enumerate(rows))
    return (logits[first : first + len(rows)] if adjacent else logits[list(rows)]).float()


def _width(params: SamplingParams, vocab_size: int) -> int:
    """How many of the most likely tokens are sorted (at first), or one of the special cases."""
    if params.greedy:
        return _GREEDY
    if _keeps_k(params, vocab_size):
        width = _LEAST_WIDTH
        while width < params.top_k:
            width *= _WIDTH_FACTOR
        return min(width, vocab_size)
    return min(_TOP_P_WIDTHS[0], vocab_size) if params.top_p < 1.0 else _UNSORTED


def _keeps_k(params: SamplingParams, vocab_size: int) -> bool:
    return 0 < params.top_k < vocab_size


def _unsorted(logits: Tensor, numbers: Sequence[int], params: Sequence[SamplingParams]) -> WarpedRows:
    """Rows with temperature and min-p only."""
    top = logits.amax(-1, keepdim=True)
    scores = _cut_min_p(_tempered(logits, top, params), params)
    return WarpedRows(tuple(numbers), scores, None, top.squeeze(-1).isfinite())


def _sorted(
    logits: Tensor, numbers: Sequence[int], params: Sequence[SamplingParams], width: int
) -> Iterator[WarpedRows]:
    """Rows with top-k or top-p, from their `width` most likely tokens; once more with more where that is too few."""
    vocab_size = logits.shape[-1]
    top = logits.amax(-1, keepdim=True)
    token_ids, values = _ranked(logits, width)
    scores = _tempered(values, top, params)
    _cut_top_k(scores, params, vocab_size)
    enough = _cut_top_p(scores, _masses(scores, logits, top, params), params, vocab_size)
    _cut_min_p(scores, params)
    group = WarpedRows(tuple(numbers), scores, token_ids, top.squeeze(-1).isfinite())
    if width == vocab_size:
        yield replace(group, scores=group.dense(vocab_size), token_ids=None)
        return
    short = [place for place, each in enumerate(enough) if not each]
    if len(short) < len(numbers):
        yield group.take([place for place, each in enumerate(enough) if each]) if short else group
    if short:
        wider = next((each for each in _TOP_P_WIDTHS if each > width), vocab_size)
        yield from _sorted(
            logits[short], [numbers[i] for i in short], [params[i] for i in short], min(wider, vocab_size)
        )


def _ranked(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(indices, values) of the `count` largest entries of [R, N], in order; the lowest index first among equals."""
    indices = selection.top_indices(values, count)
    ranked = values.gather(-1, indices).sort(stable=True, dim=-1, descending=True)
    return indices.gather(-1, ranked.indices), ranked.values


def _column(values: Iterable[float], device: torch.device) -> Tensor:
    return torch.tensor([[each] for each in values], dtype=torch.float64, device=device)


def _tempered(logits: Tensor, top: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """(logits - top) / temperature: [R, C] float32, in memory of its own."""
    scores = logits - top
    if any(each.temperature != 1.0 for each in params):
        scores /= (
            _column((each.temperature for each in params), logits.device).clamp(_FLOAT32.tiny, _FLOAT32.max).float()
        )
    return scores


def _cut_top_k(scores: Tensor, params: Sequence[SamplingParams], vocab_size: int) -> None:
    """Cuts ranked scores [R, C] behind the k-th, in place."""
    width = scores.shape[-1]
    kept = [each.top_k if _keeps_k(each, vocab_size) else width for each in params]
    if min(kept) < width:
        ranks = torch.arange(width, device=scores.device)
        scores.masked_fill_(ranks >= _column(kept, scores.device), -torch.inf)


def _masses(ranked: Tensor, logits: Tensor, top: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Sum of the weights that top-k left in each row: [R, 1] float64. Without top-k, that is of all logits [R, V]."""
    vocab_size = logits.shape[-1]
    masses = selection.precise_sum(ranked.exp())[:, None]
    whole = [place for place, each in enumerate(params) if not _keeps_k(each, vocab_size)]
    if whole:
        scores = _tempered(take_rows(logits, whole), top[whole], [params[place] for place in whole])
        masses[whole] = selection.precise_sum(scores.exp_())[:, None]
    return masses


def _cut_top_p(scores: Tensor, masses: Tensor, params: Sequence[SamplingParams], vocab_size: int) -> list[bool]:
    """Cuts ranked scores [R, C] where the mass before reaches p, in place; says which rows have enough columns."""
    if all(each.top_p >= 1.0 for each in params):
        return [True] * len(params)
    shares = scores.double().exp_() / masses
    reached = shares.cumsum(-1)
    wanted = _column((each.top_p if each.top_p < 1.0 else math.inf for each in params), scores.device)
    cut = (reached - shares) >= wanted
    cut[:, 0] = False
    scores.masked_fill_(cut, -torch.inf)
    enough = [_keeps_k(each, vocab_size) for each in params]
    if all(enough):
        return enough
    return [known or each for known, each in zip(enough, (reached[:, -1:] >= wanted).flatten().tolist(), strict=True)]


def _cut_min_p(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Cuts scores [R, C] below the logarithm of min_p, in place."""
    if any(each.min_p > 0.0 for each in params):
        least = (math.log(each.min_p) if each.min_p > 0.0 else -math.inf for each in params)
        scores.masked_fill_(scores < _column(least, scores.device).float(), -torch.inf)
    return scores
