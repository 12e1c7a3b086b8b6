"""Toy models for tests of the rejection rule: laws over a few tokens that depend on the token before."""

import functools
import math
import random
from collections.abc import Callable, Iterator, Sequence

from speculative.sampling import distribution
from speculative.sampling.counter import Stream, row_key
from speculative.sampling.types import SparseLaw

VOCAB_SIZE = 6
Law = dict[int, float]
Model = Callable[[Sequence[int]], Law]
Judge = Callable[[Sequence[int], Sequence[SparseLaw], Sequence[Law], int, int], tuple[int, int]]
"""(draft tokens, their laws, the target's laws, seed, base length) -> (accepted length, next token)."""


def make_law(salt: int, zeros: int = 0) -> Law:
    """A law over VOCAB_SIZE tokens, `zeros` of them impossible."""
    generator = random.Random(salt)
    weights = [generator.expovariate(1.0) + 0.02 for _ in range(VOCAB_SIZE)]
    for token_id in generator.sample(range(VOCAB_SIZE), zeros):
        weights[token_id] = 0.0
    total = math.fsum(weights)
    return {token_id: weight / total for token_id, weight in enumerate(weights)}


def make_model(salt: int, zeros: int = 0) -> Model:
    """A model whose law depends on the last token (or on the lack of one)."""
    laws = {last: make_law(1000 * salt + last, zeros) for last in range(-1, VOCAB_SIZE)}
    return lambda prefix: laws[prefix[-1] if prefix else -1]


def one_hot_model(salt: int) -> Model:
    """A model whose law has one token only."""
    soft = make_model(salt)
    return lambda prefix: {max(soft(prefix), key=soft(prefix).__getitem__): 1.0}


def draft_chunk(
    draft: Model, prefix: Sequence[int], length: int, *, seed: int, law_size: int, stop_below: float = 0.0
) -> Iterator[tuple[int, SparseLaw]]:
    """Draft tokens with their laws, `prefix` being the committed tokens; ends behind a law without a likely token."""
    tokens = list(prefix)
    for _ in range(length):
        law = _sparse(tuple(draft(tokens).items()), law_size)
        key = row_key(seed, Stream.DRAFT, len(tokens), len(prefix))
        tokens.append(distribution.draw(law, key))
        yield tokens[-1], law
        if max(distribution.probabilities(law).values()) < stop_below:
            return


@functools.cache
def _sparse(law: tuple[tuple[int, float], ...], size: int) -> SparseLaw:
    return distribution.sparsify(dict(law), size)


def generate(
    target: Model, draft: Model, judge: Judge, *, seed: int, tokens: int, length: int, law_size: int, adaptive: bool
) -> tuple[int, ...]:
    """The first `tokens` tokens. `adaptive` makes lengths depend on what was accepted before, and on entropy."""
    committed: list[int] = []
    while len(committed) < tokens:
        stop_below = 0.5 if adaptive else 0.0
        chunk = list(draft_chunk(draft, committed, length, seed=seed, law_size=law_size, stop_below=stop_below))
        drafted = [token_id for token_id, _ in chunk]
        targets = [target(committed + drafted[:index]) for index in range(len(drafted) + 1)]
        accepted_len, next_token = judge(drafted, [law for _, law in chunk], targets, seed, len(committed))
        committed += [*drafted[:accepted_len], next_token]
        if adaptive:
            length = 1 + accepted_len
    return tuple(committed[:tokens])


def law_of_two(target: Model) -> dict[tuple[int, ...], float]:
    """The target's own law of the first two tokens."""
    return {
        (first, second): prob * next_prob
        for first, prob in target([]).items()
        for second, next_prob in target([first]).items()
    }
