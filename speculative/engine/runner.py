"""A transformers model behind the Runner interface: packed, ragged steps over the paged cache."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from speculative.engine.attention import Bucket, make_buckets
from speculative.engine.interface import Slice
from speculative.engine.paged_cache import PagedBlocks, cumulative
from speculative.engine.rows import TorchRows
from speculative.messages import ModelInfo


@dataclass(frozen=True, slots=True)
class PackedStep:
    """One step as tensors. Tokens lie bucket by bucket; rows are in the order of the slices."""

    input_ids: torch.Tensor
    """[T] int64."""
    position_ids: torch.Tensor
    """[T] int64, absolute."""
    row_index: torch.Tensor
    """[R] int64, places whose laws are wanted."""
    read_index: torch.Tensor
    """[S] int64, places in the cache, bucket by bucket."""
    write_index: torch.Tensor
    """[T] int64, places in the cache."""
    buckets: tuple[Bucket, ...]
    """What bucketed attention takes."""
    fed: tuple[int, ...]
    """Tokens each sequence feeds, in packed order; with `held` what variable-length kernels take."""
    held: tuple[int, ...]
    """Tokens each sequence holds then, in packed order."""


class TransformersRunner:
    """A loaded model with its memory. One thread at a time.

    With `bucketed` attention (attention.py) the keys of a bucket are padded to its longest; else the model's attention
    is a variable-length kernel (flash) that takes every sequence as long as it is.
    """

    def __init__(self, model: PreTrainedModel, blocks: PagedBlocks, info: ModelInfo, *, bucketed: bool = True) -> None:
        self._model = model
        self._blocks = blocks
        self._info = info
        self._bucketed = bucketed
        self._device = model.device

    @property
    def info(self) -> ModelInfo:
        """What the model is."""
        return self._info

    @property
    def blocks(self) -> PagedBlocks:
        """Its memory."""
        return self._blocks

    def forward(self, slices: Sequence[Slice]) -> TorchRows:
        """One step. Every slice has room reserved."""
        return TorchRows(self.logits(slices), self._info.vocab_size)

    @torch.inference_mode()
    def logits(self, slices: Sequence[Slice]) -> torch.Tensor:
        """One step's logits [R, V], V with its padding."""
        step = pack(slices, self._blocks, bucketed=self._bucketed)
        output = self._model(
            input_ids=step.input_ids[None].to(self._device),
            position_ids=step.position_ids[None].to(self._device),
            logits_to_keep=step.row_index.to(self._device),
            **self._blocks.arguments(step.read_index, step.write_index, step.held),
            **({"buckets": step.buckets} if self._bucketed else self._variable_lengths(step)),
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def _variable_lengths(self, step: PackedStep) -> dict[str, object]:
        return {
            "cu_seq_lens_q": cumulative(step.fed).to(self._device),
            "max_length_q": max(step.fed),
            "block_table": None,
            "is_causal": True,
        }


def pack(slices: Sequence[Slice], blocks: PagedBlocks, *, bucketed: bool = True) -> PackedStep:
    """Lays the slices' tokens out for one forward pass; not bucketed, every sequence is a bucket of its own."""
    fed = [len(piece.token_ids) for piece in slices]
    held = [piece.cached_len + len(piece.token_ids) for piece in slices]
    groups = make_buckets(fed, held) if bucketed else [[i] for i in range(len(slices))]
    order = list(itertools.chain.from_iterable(groups))
    place = dict(zip(order, itertools.accumulate((fed[i] for i in order), initial=0), strict=False))
    reads = [blocks.read_index([slices[i].sequence_id for i in group], max(held[i] for i in group)) for group in groups]
    first_keys = itertools.accumulate((read.numel() for read in reads), initial=0)
    return PackedStep(
        input_ids=torch.tensor([token for i in order for token in slices[i].token_ids]),
        position_ids=torch.tensor([p for i in order for p in range(slices[i].cached_len, held[i])]),
        row_index=_row_index(slices, fed, place),
        read_index=torch.cat([read.reshape(-1) for read in reads]),
        write_index=torch.tensor(
            [p for i in order for p in blocks.write_index(slices[i].sequence_id, slices[i].cached_len, fed[i])]
        ),
        buckets=tuple(
            _bucket([(place[i], fed[i], held[i]) for i in group], first_key, blocks.cache.device)
            for group, first_key in zip(groups, first_keys, strict=False)
        ),
        fed=tuple(fed[i] for i in order),
        held=tuple(held[i] for i in order),
    )


def _row_index(slices: Sequence[Slice], fed: Sequence[int], place: dict[int, int]) -> torch.Tensor:
    rows = [place[i] + offset for i, piece in enumerate(slices) for offset in range(fed[i] - piece.num_rows, fed[i])]
    return torch.tensor(rows, dtype=torch.int64)


def _bucket(members: Sequence[tuple[int, int, int]], first_key: int, device: torch.device | str) -> Bucket:
    """A bucket of sequences given as (place of the first token, tokens fed, tokens held then)."""
    places, fed, held = (torch.tensor(column) for column in zip(*members, strict=True))
    longest, num_keys = int(fed.max()), int(held.max())
    steps = torch.minimum(torch.arange(longest), fed[:, None] - 1)
    padded = bool((fed != longest).any() or (held != num_keys).any())
    index = (places[:, None] + steps).to(device)
    return Bucket(index, fed.to(device), held.to(device), first_key, num_keys, padded)
