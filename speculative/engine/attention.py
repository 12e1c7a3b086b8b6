"""Attention over the paged cache, in buckets of sequences of similar length.

One block-diagonal mask over all sequences would cost the square of the batch. Here sequences that feed and hold
similar numbers of tokens form a bucket, padded to its longest, and each bucket is one call of torch's own
scaled_dot_product_attention, so that cost follows the tokens read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

ATTENTION_NAME = "outrider_bucketed"

_LENGTH_RATIO = 1.25  # the longest of a bucket reads at most this much more than its shortest ...
_LENGTH_SLACK = 64  # ... or this many tokens more


@dataclass(slots=True, eq=False)
class Bucket:
    """Sequences that attend together.

    `query_index` [B, Q]: place of each fed token in the packed input, padded rows repeat place of their last token.
    `fed` and `held` [B]: tokens fed by each sequence and tokens it holds then. `keys` is the bucket's part of what
    the cache returns: B * L rows from `first_key`, sequence by sequence, each padded to L.
    """

    query_index: torch.Tensor
    fed: torch.Tensor
    held: torch.Tensor
    first_key: int
    num_keys: int
    padded: bool
    _masks: dict[tuple[int | None, int], torch.Tensor | None] = field(default_factory=dict)

    def mask(self, window: int | None, copies: int, dtype: torch.dtype) -> torch.Tensor | None:
        """Additive mask [B, 1, copies * Q, L] for a sliding window (None: everything before); None masks nothing.

        All layers of a step share it.
        """
        if (window, copies) not in self._masks:
            mask = self._build_mask(window, dtype)
            self._masks[window, copies] = None if mask is None else mask.repeat(1, 1, copies, 1)
        return self._masks[window, copies]

    def _build_mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor | None:
        device = self.query_index.device
        one_query = self.query_index.shape[1] == 1
        if one_query and not self.padded and (window is None or self.num_keys <= window):
            return None
        first = (self.held - self.fed)[:, None]  # absolute position of each sequence's first query
        step = torch.minimum(torch.arange(self.query_index.shape[1], device=device), self.fed[:, None] - 1)
        position = (first + step)[:, :, None]
        key = torch.arange(self.num_keys, device=device)
        visible = key <= position
        if window is not None:
            visible &= key > position - window
        mask = torch.zeros(visible.shape, dtype=dtype, device=device).masked_fill_(~visible, float("-inf"))
        return mask[:, None]


def make_buckets(fed: Sequence[int], held: Sequence[int]) -> list[list[int]]:
    """Groups sequences (by index) that feed `fed` tokens and hold `held` tokens then, both of similar size."""
    order = sorted(range(len(fed)), key=lambda i: (_size_class(fed[i]), held[i]))
    groups: list[list[int]] = []
    for i in order:
        if groups and _fits(groups[-1][0], i, fed, held):
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _size_class(fed: int) -> int:
    """1 alone, then powers of two: padding at most doubles the queries of a sequence."""
    return (fed - 1).bit_length()


def _fits(first: int, i: int, fed: Sequence[int], held: Sequence[int]) -> bool:
    if _size_class(fed[first]) != _size_class(fed[i]):
        return False
    return held[i] <= max(held[first] * _LENGTH_RATIO, held[first] + _LENGTH_SLACK)


def bucketed_attention(
    _module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    *,
    buckets: Sequence[Bucket],
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_others: object,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers' models call it: query [1, H, T, D], key and value [1, H_kv, sum of B * L, D].

    Queries of the heads that share a key head are stacked, so that keys are read once and never repeated.
    """
    if softcap is not None or s_aux is not None:
        raise ValueError("attention with soft-capping or sinks is not supported")
    heads, tokens, dim = query.shape[1:]
    key_heads = key.shape[1]
    keys, values = key[0].transpose(0, 1), value[0].transpose(0, 1)  # [S, H_kv, D]
    out = query.new_empty(tokens, heads, values.shape[-1])
    queries = query[0].transpose(0, 1)  # [T, H, D]
    for bucket in buckets:
        batch, length = bucket.query_index.shape
        part = slice(bucket.first_key, bucket.first_key + batch * bucket.num_keys)
        k = keys[part].view(batch, bucket.num_keys, key_heads, -1).transpose(1, 2)
        v = values[part].view(batch, bucket.num_keys, key_heads, -1).transpose(1, 2)
        q = queries[bucket.query_index]  # [B, Q, H, D]
        q = q.view(batch, length, key_heads, heads // key_heads, dim).permute(0, 2, 3, 1, 4)
        q = q.reshape(batch, key_heads, -1, dim)  # [B, H_kv, heads per key head * Q, D]
        mask = bucket.mask(sliding_window, heads // key_heads, query.dtype)
        attended = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling)
        attended = attended.view(batch, key_heads, heads // key_heads, length, -1).permute(0, 3, 1, 2, 4)
        out[bucket.query_index] = attended.reshape(batch, length, heads, -1)
    return out[None], None


AttentionInterface.register(ATTENTION_NAME, bucketed_attention)
