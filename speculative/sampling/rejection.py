"""What the rejection rule (acceptance.py) needs of whole rows: heads of laws, and residuals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from speculative.sampling import distribution
from speculative.sampling.types import SparseLaw
from speculative.sampling.warp import WarpedRows

HEAD_SIZE = 1 + 2 * distribution.MAX_LAW_SIZE
"""Numbers in the head of a law."""


def law_heads(laws: WarpedRows, size: int = distribution.MAX_LAW_SIZE, *, log_totals: Tensor | None = None) -> Tensor:
    """The likeliest ids of each law as `make_law` takes them: [R, 1 + 2 * size] float64.

    `log_totals` are the laws' own, where they are known.
    """
    token_ids, scores = laws.most_likely(size)
    missing = (0, size - token_ids.shape[-1])
    return torch.cat(
        [
            (laws.log_totals() if log_totals is None else log_totals)[:, None],
            functional.pad(token_ids.double(), missing),
            functional.pad(scores.double(), missing, value=-torch.inf),
        ],
        dim=-1,
    )


def make_law(head: Sequence[float]) -> SparseLaw:
    """The quantised law of a head: logarithm of the whole law's total, then ids, then as many scores."""
    log_total, size = head[0], len(head) // 2
    token_ids, scores = head[1 : 1 + size], head[1 + size :]
    kept_mass = math.fsum(math.exp(score - log_total) for score in scores)
    return distribution.quantise([int(each) for each in token_ids], [math.exp(s) for s in scores], 1.0 - kept_mass)


def residual_rows(targets: WarpedRows, drafts: Sequence[Mapping[int, float]], vocab_size: int) -> WarpedRows:
    """The laws `max(0, target - draft)`, by id; the target's own where that is zero, or where `draft` is empty.

    `drafts` (id -> probability) is indexed by `targets.rows`. As `acceptance.residual`; a one-hot target has itself for
    its residual. Writes over `targets`.
    """
    places = [place for place, number in enumerate(targets.rows) if drafts[number]]
    if targets.one_hot or not places:
        return targets
    scores, log_totals = targets.dense(vocab_size), targets.log_totals()[places, None]
    token_ids, draft_probs = _as_tensors([drafts[targets.rows[place]] for place in places], scores.device)
    target = scores[places]
    left = (target.gather(-1, token_ids).double() - log_totals).exp_() - draft_probs
    residual = target.scatter(-1, token_ids, (left.clamp_(min=0.0).log_() + log_totals).float())
    empty = residual.amax(-1, keepdim=True) == -torch.inf
    scores[places] = torch.where(empty, target, residual)
    return replace(targets, scores=scores, token_ids=None)


def _as_tensors(laws: Sequence[Mapping[int, float]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids [R, L] int64 and probabilities [R, L] float64; shorter laws repeat their first entry."""
    width = max(map(len, laws))
    rows = [[*law.items()] + [*law.items()][:1] * (width - len(law)) for law in laws]
    token_ids = torch.tensor([[token_id for token_id, _ in row] for row in rows], device=device)
    return token_ids, torch.tensor([[prob for _, prob in row] for row in rows], dtype=torch.float64, device=device)
