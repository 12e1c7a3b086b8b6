"""How many draft tokens stand: the arithmetic of rounds over a known answer of the target.

A lossless round commits what the target says anyway, so a draft can be judged on answers that are already there:
position i of the answer *stands* if the draft, given everything before it, proposes the answer's token. For greedy
answers that is an equality. For sampled ones it is an event with a probability, given the token that the target
drew:

- rejection sampling (maximal coupling): min(1, draft_probs / target_probs) at the token;
- coupled sampling (one race for both): 1 / (target_probs[token] * sum_j max(target_probs[j] / target_probs[token],
  draft_probs[j] / draft_probs[token])); see speculative/sampling/coupling.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

LOOKUP_SIZES = (3, 2)


@dataclass(frozen=True)
class Round:
    """A chunk of `drafted_len` tokens of which `accepted_len` stood; `accepted_len` + 1 tokens were committed."""

    drafted_len: int
    accepted_len: int
    from_lookup: bool = False


@lru_cache(maxsize=2**18)
def look_up(token_ids: tuple[int, ...], length: int, max_tokens: int) -> tuple[int, ...]:
    """Prompt lookup: what followed the last earlier occurrence of the final 3, else 2, of the first `length` tokens."""
    for size in LOOKUP_SIZES:
        if length <= size:
            continue
        pattern = token_ids[length - size : length]
        for start in range(length - size - 1, -1, -1):
            if token_ids[start : start + size] == pattern:
                return token_ids[start + size : min(length, start + size + max_tokens)]
    return ()


def play(token_ids: tuple[int, ...], prompt_len: int, stands: Sequence[bool], chunk: int, lookup: bool) -> list[Round]:
    """The rounds that commit the answer `token_ids[prompt_len:]`; `stands[i]` belongs to its i-th token.

    With `lookup`, a round whose prefix ends like an earlier place proposes what followed there, and the draft proposes
    only where there is no such place. A last round that the end of the answer would cut short is left out.
    """
    rounds = []
    length = prompt_len
    while len(token_ids) - length > chunk:
        proposed = look_up(token_ids, length, chunk) if lookup else ()
        if proposed:
            hits = [token == token_ids[length + index] for index, token in enumerate(proposed)]
        else:
            hits = list(stands[length - prompt_len : length - prompt_len + chunk])
        accepted_len = hits.index(False) if False in hits else len(hits)
        rounds.append(Round(len(hits), accepted_len, bool(proposed)))
        length += accepted_len + 1
    return rounds


def tokens_a_round(rounds: Sequence[Round]) -> float:
    """Committed tokens per round, the target's own included."""
    return sum(entry.accepted_len + 1 for entry in rounds) / len(rounds)


def acceptance_by_position(rounds: Sequence[Round], chunk: int) -> list[float]:
    """For each position of a chunk: how often it stood, among the rounds in which all before it stood."""
    shares = []
    for position in range(chunk):
        reached = [entry for entry in rounds if entry.drafted_len > position and entry.accepted_len >= position]
        shares.append(sum(entry.accepted_len > position for entry in reached) / max(1, len(reached)))
    return shares


def rejection_acceptance(target_probs: Tensor, draft_probs: Tensor, token_ids: Tensor) -> Tensor:
    """Probability `[n]` that the draft's token is the target's, given the target's; laws are `[n, vocabulary]`."""
    target, draft = _at(target_probs, token_ids), _at(draft_probs, token_ids)
    return (draft / target).clamp(max=1.0)


def coupled_acceptance(target_probs: Tensor, draft_probs: Tensor, token_ids: Tensor) -> Tensor:
    """The same where both laws' tokens come from one race (see the module's docstring)."""
    target, draft = _at(target_probs, token_ids), _at(draft_probs, token_ids)
    slowest = torch.maximum(target_probs / target[:, None], draft_probs / draft.clamp(min=1e-30)[:, None])
    return torch.where(draft > 0, 1 / (target * slowest.sum(-1)), torch.zeros_like(draft))


def _at(probs: Tensor, token_ids: Tensor) -> Tensor:
    return probs.gather(1, token_ids[:, None])[:, 0]
