"""`divergence.py` for whole rows at once, on the device the target's laws are on."""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from speculative.sampling.divergence import LEAST_PROBABILITY
from speculative.sampling.types import SparseLaw
from speculative.sampling.warp import WarpedRows

Number = TypeVar("Number", int, float)


class MergedRows(NamedTuple):
    """Both laws of each row: the probabilities of the sparse law's ids, zeros where it has fewer, and the bucket's."""

    target: Tensor
    """[R, L + 1] float64."""
    draft: Tensor
    """[R, L + 1] float64."""


def merge(targets: WarpedRows, drafts: Sequence[SparseLaw], log_totals: Tensor | None = None) -> MergedRows:
    """The laws of `targets` and of `drafts`, one for each row in order, merged alike.

    `log_totals` are the targets' own, where they are known.
    """
    width = max(len(draft.token_ids) for draft in drafts)
    device = targets.scores.device
    token_ids = torch.tensor([_padded(draft.token_ids, width, draft.token_ids[0]) for draft in drafts], device=device)
    draft_probs = torch.tensor([_draft_row(draft, width) for draft in drafts], dtype=torch.float64, device=device)
    lengths = torch.tensor([[len(draft.token_ids)] for draft in drafts], device=device)
    log_totals = targets.log_totals() if log_totals is None else log_totals
    target_probs = (targets.scores_of(token_ids).double() - log_totals[:, None]).exp_()
    target_probs.masked_fill_(torch.arange(width, device=device) >= lengths, 0.0)
    bucket = (1.0 - target_probs.sum(-1, keepdim=True)).clamp_(min=0.0)
    return MergedRows(torch.cat([target_probs, bucket], dim=-1), draft_probs)


def kl_divergences_nats(merged: MergedRows) -> Tensor:
    """KL(target || draft) of each row: [R] float64."""
    target, draft = merged.target.clamp(min=LEAST_PROBABILITY), merged.draft.clamp(min=LEAST_PROBABILITY)
    return (target * (target / draft).log_()).sum(-1).clamp_(min=0.0)


def js_distances(merged: MergedRows) -> Tensor:
    """Jensen-Shannon distance of each row, in [0, 1]: [R] float64."""
    target, draft = merged
    total = (target + draft).clamp_(min=torch.finfo(torch.float64).tiny)
    halves = torch.xlogy(target, 2.0 * target / total) + torch.xlogy(draft, 2.0 * draft / total)
    return (halves.sum(-1) / (2.0 * math.log(2.0))).clamp_(0.0, 1.0).sqrt_()


def _draft_row(draft: SparseLaw, width: int) -> list[float]:
    """Its probabilities by column, the bucket's last."""
    scale = (1.0 - draft.tail_mass) / math.fsum(draft.weights)
    return [*_padded([weight * scale for weight in draft.weights], width, 0.0), draft.tail_mass]


def _padded(values: Sequence[Number], width: int, filler: Number) -> list[Number]:
    return list(values) + [filler] * (width - len(values))
