"""Largest entries and sums of long rows, block by block, with ties going to the lowest index.

A first pass reduces every block of `BLOCK` entries to one number; only the few blocks that can matter are looked at
again. torch promises no order among equal entries in `topk`, and reduced-precision logits are full of them: here the
result is always the same set.
"""

import torch
from torch import Tensor

BLOCK = 128


def block_max(values: Tensor) -> Tensor:
    """The maximum of each block: [R, N] -> [R, ceil(N / BLOCK)]."""
    blocks, rest = _blocks(values)
    maxima = blocks.amax(-1)
    return torch.cat([maxima, rest.amax(-1, keepdim=True)], dim=-1) if rest.shape[-1] else maxima


def precise_sum(values: Tensor) -> Tensor:
    """The sum of each row of [R, N] float32, as [R] float64: blocks in float32, their sums in float64.

    Nearly as exact as float64 throughout, much faster, and the same whatever the batch and the number of threads.
    """
    blocks, rest = _blocks(values)
    return blocks.sum(-1).sum(-1, dtype=torch.float64) + rest.sum(-1, dtype=torch.float64)


def _blocks(values: Tensor) -> tuple[Tensor, Tensor]:
    """Views of the whole blocks [R, N // BLOCK, BLOCK], and of what is left [R, N % BLOCK]."""
    rows, length = values.shape
    whole = length - length % BLOCK
    return values[:, :whole].view(rows, whole // BLOCK, BLOCK), values[:, whole:]


def block_members(blocks: Tensor, length: int) -> Tensor:
    """Indices of the members of `blocks` [R, B] in rows of `length` >= BLOCK entries: [R, B * BLOCK].

    A last block that is short is filled up with entries of the one before it.
    """
    first = (blocks * BLOCK).clamp_(max=length - BLOCK)
    return (first[:, :, None] + torch.arange(BLOCK, device=blocks.device)).flatten(1)


def largest(values: Tensor) -> tuple[Tensor, Tensor]:
    """(value [R], index [R] int64) of the largest entry of each row of [R, N]; the lowest index on a tie.

    A row with a NaN gives NaN.
    """
    length = values.shape[-1]
    if length <= BLOCK:
        index = values.argmax(-1, keepdim=True)
    else:
        members = block_members(block_max(values).argmax(-1, keepdim=True), length)
        index = members.gather(-1, values.gather(-1, members).argmax(-1, keepdim=True))
    return values.gather(-1, index).squeeze(-1), index.squeeze(-1)


def top_indices(values: Tensor, count: int) -> Tensor:
    """Indices of the `count` largest entries of each row, ascending: [R, N] -> [R, min(count, N)] int64.

    Exactly so many; among equal entries the lowest indices. NaN counts as largest.
    """
    rows, length = values.shape
    if count >= length:
        return torch.arange(length, device=values.device).expand(rows, length)
    if 2 * count * BLOCK > length:
        return _top_indices_flat(values, count)
    # An entry of the result is beaten by fewer than `count` others, and so is its block among the blocks.
    blocks = _top_indices_flat(block_max(values), count)
    first = blocks[:, :, None] * BLOCK
    members = (first + torch.arange(BLOCK, device=values.device)).flatten(1)
    found = values.gather(-1, members.clamp(max=length - 1)).masked_fill_(members >= length, -torch.inf)
    return members.gather(-1, _top_indices_flat(found, count))


def _top_indices_flat(values: Tensor, count: int) -> Tensor:
    """As `top_indices`, for `count` < N, without blocks."""
    top, index = values.topk(min(count + 1, values.shape[-1]))
    least = top[:, count - 1 : count]
    if top.shape[-1] == count or bool((top[:, count:] < least).all()):
        return index[:, :count].sort().values
    above, equal = ~(values <= least), values == least
    room = count - above.sum(-1, keepdim=True)
    kept = above | (equal & (equal.cumsum(-1) <= room))
    kept &= kept.cumsum(-1) <= count  # matters only where `least` is NaN, and everything is "above" it
    return kept.nonzero()[:, 1].view(-1, count)
