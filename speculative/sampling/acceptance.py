"""Which draft tokens stand, and the target's own token behind them. No torch here.

Words, used unchanged in code, metrics and tests:

- *drafted*: a token the draft proposed.
- *accepted*: a drafted token that stands.
- *recovered*: the target's own token in place of the first rejected draft token.
- *bonus*: the target's own token behind a chunk that was accepted whole, or was empty.
- *committed*: final; part of the output or of the prompt.
- *chunk*: the drafted tokens verified together; *round*: one chunk and its verdict. A round commits its accepted tokens
  and one token more, recovered or bonus: `committed = accepted + 1`.

Coupled rule (arXiv 2408.07978): both sides pick by the race under the same numbers, and a draft token stands iff it is
the target's own pick. Greedy decoding is the same rule without numbers.

Rejection rule (arXiv 2211.17192, algorithm 1): token x stands with probability `min(1, target(x) / draft(x))`; at the
first that does not, the next token is drawn from `norm(max(0, target - draft))`; behind a full chunk, from the target.

Numbers of the rejection rule are keyed by purpose, absolute position *and* base length. The length of a round may
depend on numbers used before (an entropy threshold learns from rejections), so a position that is visited again in a
later round needs a fresh number: the old one may already have decided where this round starts or ends. A round that
is repeated with the same base length (retry, fail-over) gets the same numbers, hence the same verdict.
"""

from collections.abc import Callable, Mapping, Sequence

from speculative.sampling import counter
from speculative.sampling.counter import Stream
from speculative.sampling.distribution import probabilities
from speculative.sampling.types import SparseLaw


def coupled_accepted_len(draft_token_ids: Sequence[int], target_token_ids: Sequence[int]) -> int:
    """Length of the longest common prefix of the drafted tokens and the target's picks at the same positions."""
    for index, (drafted, picked) in enumerate(zip(draft_token_ids, target_token_ids, strict=False)):
        if drafted != picked:
            return index
    return min(len(draft_token_ids), len(target_token_ids))


def rejection_accepted_len(
    draft_probs: Sequence[float], target_probs: Sequence[float], *, seed: int, base_len: int
) -> int:
    """How many draft tokens stand before the first rejection.

    Both sequences hold the probability of the drafted token at each position, `base_len` being the position of the
    first. A token of draft probability zero cannot have been drawn, and never stands; nor does one the target excludes.
    """
    for index, (draft_prob, target_prob) in enumerate(zip(draft_probs, target_probs, strict=True)):
        if not stands(draft_prob, target_prob, seed=seed, position=base_len + index, base_len=base_len):
            return index
    return len(draft_probs)


def stands(draft_prob: float, target_prob: float, *, seed: int, position: int, base_len: int) -> bool:
    """Whether the rejection rule lets the draft token at `position` stand."""
    number = counter.uniform(counter.row_key(seed, Stream.ACCEPT, position, base_len))
    return draft_prob > 0.0 and number * draft_prob < target_prob


def recover_key(seed: int, base_len: int, accepted_len: int) -> int:
    """The row key under which the token behind `accepted_len` accepted ones is drawn."""
    return counter.row_key(seed, Stream.RECOVER, base_len + accepted_len, base_len)


def residual(target: Mapping[int, float], draft: Mapping[int, float]) -> dict[int, float]:
    """`max(0, target - draft)` by id, not normalised; `target` itself if that is zero everywhere.

    A residual of zero means equal laws, under which a rejection has probability zero; only rounding can lead here, and
    then the target's own law is the right one to draw from.
    """
    left = {token_id: prob - draft.get(token_id, 0.0) for token_id, prob in target.items()}
    positive = {token_id: weight for token_id, weight in left.items() if weight > 0.0}
    return positive or dict(target)


def judge(
    draft_token_ids: Sequence[int],
    laws: Sequence[SparseLaw],
    target: Callable[[int], Mapping[int, float]],
    *,
    seed: int,
    base_len: int,
) -> tuple[int, int]:
    """(accepted length, recovered or bonus token) by the rejection rule.

    `target(i)` is the target's warped law (id -> probability) at the i-th position of the chunk, up to the one behind
    it; `laws[i]` is the law the i-th draft token was drawn from.
    """
    targets = [target(index) for index in range(len(draft_token_ids) + 1)]
    drafts = [probabilities(law) for law in laws]
    accepted_len = rejection_accepted_len(
        [draft.get(token_id, 0.0) for draft, token_id in zip(drafts, draft_token_ids, strict=True)],
        [law.get(token_id, 0.0) for law, token_id in zip(targets, draft_token_ids, strict=False)],
        seed=seed,
        base_len=base_len,
    )
    draft = drafts[accepted_len] if accepted_len < len(drafts) else {}
    key = recover_key(seed, base_len, accepted_len)
    return accepted_len, recover(targets[accepted_len], draft, key)


def recover(target: Mapping[int, float], draft: Mapping[int, float], key: int) -> int:
    """The recovered token, or the bonus token where `draft` is empty, under row key `key`."""
    law = residual(target, draft) if draft else target
    return counter.race(key, law.items())
