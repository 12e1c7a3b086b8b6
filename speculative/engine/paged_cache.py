"""Keys and values in transformers' paged cache; this file is the only one that knows its interface.

The cache is told that every layer attends to everything. Its own cache for sliding layers is a ring as long as the
window: a chunk would overwrite keys that a rollback needs again (docs/decisions/0004). With whole sequences kept,
rolling back is a length, blocks can be shared for every model, and the window is a matter of the mask.
"""

import copy
import itertools
from collections.abc import Sequence

import torch
from transformers import ContinuousBatchingConfig, PreTrainedConfig
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.distributed import DistributedHelper

_LAYER_TYPE = "full_attention"


class PagedBlocks:
    """A BlockPool over one PagedAttentionCache. Blocks of committed tokens are shared between equal prefixes."""

    def __init__(
        self,
        config: PreTrainedConfig,
        *,
        num_blocks: int,
        block_tokens: int,
        max_batch_tokens: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.cache = PagedAttentionCache(
            config=_whole_sequences(config),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=block_tokens,
                num_blocks=num_blocks,
                max_batch_tokens=max_batch_tokens,
                max_requests_per_batch=max_batch_tokens,
                max_blocks_per_request=0,
                max_memory_percent=0.9,
            ),
            device=device,
            distributed_helper=DistributedHelper(None, None),
            dtype=dtype,
            model_supports_logits_to_keep=True,
        )
        self._allocator = self.cache.cache_allocators[_LAYER_TYPE]
        self._offsets = torch.arange(block_tokens)
        self._shared_blocks: dict[str, int] = {}  # by sequence: how many of its blocks have been offered for sharing

    @property
    def block_tokens(self) -> int:
        """Tokens in a block."""
        return self._allocator.tokens_per_page

    @property
    def num_blocks(self) -> int:
        """All blocks."""
        return self._allocator.num_blocks

    @property
    def free_blocks(self) -> int:
        """Blocks that a new sequence could get, those kept only for reuse included."""
        return self._unused_blocks + len(self._allocator.ledger.cached_blocks)

    @property
    def _unused_blocks(self) -> int:
        pool = self.cache.pool
        return pool.count_free_blocks(self._allocator.index) + pool.num_free_sectors * self._allocator.blocks_per_sector

    def attach(self, sequence_id: str, token_ids: Sequence[int]) -> int:
        """Starts a sequence; returns how many of its first tokens are already held (shared prefix), never all."""
        held_len = self.cache.search_prefix_match(sequence_id, list(token_ids))
        self._shared_blocks[sequence_id] = held_len // self.block_tokens
        return held_len

    def reserve(self, sequence_id: str, cached_len: int, extend_len: int) -> bool:
        """Makes room for `extend_len` tokens behind `cached_len`; False, and nothing changed, if there is none."""
        needed = self._allocator.needs_new_blocks(sequence_id, cached_len, extend_len)
        if needed > self.free_blocks:
            return False
        if needed > self._unused_blocks:
            self.cache.evict_cached_blocks()
        for _ in range(self._allocator.needs_new_sectors(sequence_id, cached_len, extend_len)):
            self.cache.pool.allocate_sector(self._allocator.index)
        self._allocator.allocate_cache_to_request(sequence_id, cached_len, extend_len)
        return True

    def commit(self, sequence_id: str, token_ids: Sequence[int], cached_len: int) -> None:
        """Says that the first `cached_len` of `token_ids` are held and final, so that others may share them."""
        complete = cached_len // self.block_tokens
        new = complete - self._shared_blocks.get(sequence_id, 0)
        if new > 0 and self.cache.use_prefix_sharing:
            final = list(token_ids[: complete * self.block_tokens])
            self._allocator.mark_complete_blocks(sequence_id, final, new)
            self._shared_blocks[sequence_id] = complete

    def holds(self, sequence_id: str) -> bool:
        """Whether the sequence holds at least one block."""
        return bool(self._allocator.block_table.get(sequence_id))

    def release(self, sequence_id: str) -> None:
        """Gives back everything the sequence holds; harmless if it holds nothing."""
        self.cache.free_blocks(sequence_id)
        self._shared_blocks.pop(sequence_id, None)

    def check_integrity(self, sequence_ids: frozenset[str]) -> None:
        """Raises AssertionError unless exactly these sequences hold blocks and all blocks are accounted for."""
        tables = {key: blocks for key, blocks in self._allocator.block_table.items() if blocks}
        assert tables.keys() <= sequence_ids, f"blocks held by unknown sequences: {tables.keys() - sequence_ids}"
        references: dict[int, int] = {}
        for blocks in tables.values():
            for block in blocks:
                references[block] = references.get(block, 0) + 1
        ledger = self._allocator.ledger
        shared = {block: count for block, count in references.items() if count > 1}
        assert shared == ledger.shared_ref_counts, "reference counts disagree with the block tables"
        assert not references.keys() & ledger.cached_blocks.keys(), "a block is both held and kept for reuse"
        accounted = len(references) + len(ledger.cached_blocks) + self._unused_blocks
        assert accounted == self.num_blocks, f"{accounted} of {self.num_blocks} blocks are accounted for"

    def read_index(self, sequence_ids: Sequence[str], length: int) -> torch.Tensor:
        """Where the first `length` tokens of each sequence lie: int64 [len(sequence_ids), length].

        Rows of shorter sequences end in places of the trash block, to be masked.
        """
        blocks = -(-length // self.block_tokens)
        table = torch.zeros(len(sequence_ids), blocks, dtype=torch.int64)
        for row, sequence_id in enumerate(sequence_ids):
            held = self._allocator.block_table[sequence_id][:blocks]
            table[row, : len(held)] = torch.tensor(held)
        starts = table * self._allocator.block_physical_stride
        return (starts[:, :, None] + self._offsets).view(len(sequence_ids), -1)[:, :length]

    def write_index(self, sequence_id: str, cached_len: int, extend_len: int) -> list[int]:
        """Where `extend_len` tokens behind `cached_len` go."""
        return self._allocator.get_write_indices(sequence_id, cached_len, extend_len)

    def arguments(self, read_index: torch.Tensor, write_index: torch.Tensor, held: Sequence[int]) -> dict[str, object]:
        """What a model's forward takes to write at `write_index` [T] and read at `read_index` [S] in every layer.

        `held` are the lengths of the sequences, in packed order; only variable-length kernels look at them.
        """
        device = self.cache.device
        return {
            "cache": self.cache,
            "use_cache": False,
            "read_index": [read_index.to(device)],
            "write_index": [write_index.to(device)],
            "cu_seq_lens_k": {_LAYER_TYPE: cumulative(held).to(device)},
            "max_length_k": {_LAYER_TYPE: max(held)},
        }


def cumulative(lengths: Sequence[int]) -> torch.Tensor:
    """Running sums from 0: int32 [len(lengths) + 1]."""
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


def bytes_per_token(config: PreTrainedConfig, dtype: torch.dtype) -> int:
    """Keys and values of one token in all layers, in bytes."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * head_dim * dtype.itemsize)


def _whole_sequences(config: PreTrainedConfig) -> PreTrainedConfig:
    """The configuration with every layer attending to everything, for the cache's eyes only."""
    whole = copy.deepcopy(config)
    if getattr(whole, "layer_types", None) is not None:
        whole.layer_types = [_LAYER_TYPE] * whole.num_hidden_layers
    if getattr(whole, "sliding_window", None) is not None:
        whole.sliding_window = None
    # Not used for attention; it makes the cache plan no memory for one mask over the whole batch.
    whole._attn_implementation = "flash_attention_2"
    return whole
