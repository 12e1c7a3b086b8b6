"""The exponential race over whole rows, exact, without logarithms over the vocabulary.

Token v of a row wins iff it has the least `E[v] / weight[v]`, where `E[v]` is the Exp(1) number of counter.py and
`weight[v] = exp(score[v])`. The winner is distributed as the normalised weights, and two models that race on the same
numbers pick the same token as often as two laws can without talking (arXiv 2408.07978; Gumbel-max is the same rule).

Two stages. First, for all ids, a lower bound of `ln(E / weight)` that costs no logarithm: `E >= r` for
`r = (word + 1/2) / 2^31`, and the bits of a float, read as an integer, tell its log2 from below, by at most 0.09. Then
the exact value in float64, only for ids in the few blocks whose bound is least. If the best exact value is below the
bound of all other blocks, it is the winner of the whole row: *certified*. If it is not (very rare), the caller asks for
the row again with `race_exact`.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from speculative.sampling import counter, selection

_FINALISTS = 4  # blocks that are looked at in full
_NATS_PER_UNIT = math.log(2.0) / 2.0**23  # of a float32's bits, read as an integer
_BIAS_NATS = (127 + counter.WORD_BITS) * math.log(2.0)  # what those bits say above ln(r)
_ROUNDING_NATS = 1e-4  # of the bounds in float32, a few units in the last place of 110
_ROUNDING = 2.0**-21  # of scores in float32, relative


class RaceResult(NamedTuple):
    """Who won each row, and whether that is certain."""

    token_ids: Tensor
    """[R] int64."""
    certified: Tensor
    """[R] bool."""


def row_words(keys: Sequence[int], token_ids: Tensor) -> Tensor:
    """`counter.word` of ids [C] or [R, C] under R row keys: [R, C] int32, in 0 ... 2^31 - 1."""
    words = token_ids.new_empty((len(keys), token_ids.shape[-1]), dtype=torch.int32)
    _hash(_premix(token_ids), keys, words, torch.empty_like(words))
    return words


def race(scores: Tensor, keys: Sequence[int]) -> RaceResult:
    """Races [R, V] float32 scores (logarithms of weights by id; -inf never wins), each row under its own row key.

    Every row needs a finite score. The lowest id wins a tie.
    """
    vocab_size = scores.shape[-1]
    if vocab_size <= (_FINALISTS + 1) * selection.BLOCK:
        return RaceResult(race_exact(scores, keys), scores.new_ones(scores.shape[0], dtype=torch.bool))
    blocks = _block_bounds(scores, keys).topk(_FINALISTS + 1)
    finalists = selection.block_members(blocks.indices[:, :_FINALISTS], vocab_size)
    least, winners = _exact(scores.gather(-1, finalists), keys, finalists)
    slack = _ROUNDING_NATS + _ROUNDING * (least.abs() + 32.0)
    others = -(blocks.values[:, _FINALISTS].double() + _BIAS_NATS)
    return RaceResult(winners, least + slack < others)


def race_exact(scores: Tensor, keys: Sequence[int], token_ids: Tensor | None = None) -> Tensor:
    """As `race`, from the exact value of every column: winners [R] int64.

    `token_ids` [R, C] names the columns of scores [R, C]; without it they are the ids themselves.
    """
    if token_ids is None:
        token_ids = torch.arange(scores.shape[-1], device=scores.device)
    return _exact(scores, keys, token_ids)[1]


def _exact(scores: Tensor, keys: Sequence[int], token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """The least ln(E / weight) of each row, in float64, and its id."""
    share = (row_words(keys, token_ids).double() + 0.5) * 2.0**-counter.WORD_BITS
    values = (-torch.log1p(-share)).log_() - scores
    least = values.amin(-1, keepdim=True)
    tied = torch.where(values == least, token_ids, torch.iinfo(torch.int64).max)
    return least.squeeze(-1), tied.amin(-1)


def _block_bounds(scores: Tensor, keys: Sequence[int]) -> Tensor:
    """In each block the largest bound of ln(weight / E), less `_BIAS_NATS`: [R, V] -> [R, blocks] float32.

    A few rows at a time and in place, so that they stay in the processor's cache.
    """
    vocab_size = scores.shape[-1]
    premixed = _premixed_vocabulary(vocab_size, scores.device)
    step = max(1, _elements_at_a_time(scores.device) // vocab_size)
    words, scratch = (scores.new_empty((min(step, len(keys)), vocab_size), dtype=torch.int32) for _ in range(2))
    bounds = []
    for first in range(0, len(keys), step):
        some_keys, some_scores = keys[first : first + step], scores[first : first + step]
        some, spare = words[: len(some_keys)], scratch[: len(some_keys)]
        _hash(premixed, some_keys, some, spare)
        floats = spare.view(torch.float32).copy_(some)
        bits = some.view(torch.float32).copy_(floats.view(torch.int32))
        bounds.append(selection.block_max(torch.sub(some_scores, bits, alpha=_NATS_PER_UNIT, out=floats)))
    return torch.cat(bounds)


def _elements_at_a_time(device: torch.device) -> int:
    return 2**17 * max(2, torch.get_num_threads()) if device.type == "cpu" else 2**26


def _hash(premixed: Tensor, keys: Sequence[int], words: Tensor, scratch: Tensor) -> None:
    """The keyed half of `counter.word`, into `words`; `scratch` has the same shape."""
    low, high = (
        torch.tensor([[_signed(key >> shift)] for key in keys], dtype=torch.int32, device=words.device)
        for shift in (0, 32)
    )
    torch.bitwise_xor(premixed, low, out=words)
    _xor_shifted(words, 16, scratch)
    words.mul_(_signed(counter.MULTIPLIER_1)).add_(high)
    _xor_shifted(words, 15, scratch)
    words.mul_(_signed(counter.MULTIPLIER_2)).bitwise_and_(counter.WORD_MASK)


@functools.lru_cache(maxsize=8)
def _premixed_vocabulary(vocab_size: int, device: torch.device) -> Tensor:
    """`counter.premixed` of 0 ... vocab_size - 1: [V] int32."""
    return _premix(torch.arange(vocab_size, device=device))


def _premix(token_ids: Tensor) -> Tensor:
    x = token_ids.to(torch.int32) + _signed(counter.GOLDEN32)
    scratch = torch.empty_like(x)
    _xor_shifted(x, 16, scratch)
    x.mul_(_signed(counter.MULTIPLIER_1))
    _xor_shifted(x, 15, scratch)
    x.mul_(_signed(counter.MULTIPLIER_2))
    _xor_shifted(x, 16, scratch)
    return x


def _xor_shifted(x: Tensor, bits: int, scratch: Tensor) -> None:
    """`x ^= x >> bits` in place, x being unsigned although its type is int32."""
    torch.bitwise_right_shift(x, bits, out=scratch)
    x.bitwise_xor_(scratch.bitwise_and_((1 << (32 - bits)) - 1))


def _signed(word: int) -> int:
    """The int32 with the low 32 bits of `word`."""
    return ((word & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000
