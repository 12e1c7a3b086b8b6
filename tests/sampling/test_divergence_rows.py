"""Divergences of whole rows are those of divergence.py, row by row."""

import pytest
import torch

from speculative.sampling import divergence, divergence_rows
from speculative.sampling.distribution import sparsify
from speculative.sampling.types import SamplingParams, SparseLaw
from speculative.sampling.warp import warp, warp_rows

VOCAB_SIZE = 900
PARAMS = [
    SamplingParams(),
    SamplingParams(0.6),
    SamplingParams(1.0, 20),
    SamplingParams(1.0, 0, 0.8),
    SamplingParams(1.2, 0, 0.99, 0.01),
]


def law_of(logits: torch.Tensor, size: int) -> SparseLaw:
    return sparsify(dict(enumerate(logits.double().softmax(-1).tolist())), size)


@pytest.mark.parametrize("params", PARAMS)
def test_rows_give_what_single_laws_give(params: SamplingParams) -> None:
    generator = torch.Generator().manual_seed(8)
    logits = 3.0 * torch.randn(6, VOCAB_SIZE, generator=generator)
    near = logits + torch.randn(6, VOCAB_SIZE, generator=generator)
    drafts = [law_of(row, size) for row, size in zip(near, (1, 5, 32, 32, 32, 900), strict=True)]
    drafts[3] = SparseLaw((7, 8), (1.0, 0.0))
    dense = warp(logits, [params] * 6).double().softmax(-1)
    for group in warp_rows(logits, range(6), [params] * 6):
        own = [drafts[number] for number in group.rows]
        merged = divergence_rows.merge(group, own)
        kl, js = divergence_rows.kl_divergences_nats(merged), divergence_rows.js_distances(merged)
        for place, number in enumerate(group.rows):
            head = dense[number, list(own[place].token_ids)].tolist()
            assert float(kl[place]) == pytest.approx(divergence.kl_divergence_nats(head, own[place]), abs=1e-6)
            assert float(js[place]) == pytest.approx(divergence.js_distance(head, own[place]), abs=1e-5)


def test_equal_laws_are_at_zero_and_disjoint_ones_at_one() -> None:
    logits = torch.full((2, 50), -torch.inf)
    logits[:, :2] = torch.tensor([0.75, 0.25]).log()
    (group,) = warp_rows(logits, range(2), [SamplingParams()] * 2)
    merged = divergence_rows.merge(group, [SparseLaw((0, 1), (0.75, 0.25)), SparseLaw((30,), (1.0,))])
    assert divergence_rows.js_distances(merged).tolist() == pytest.approx([0.0, 1.0], abs=1e-6)
    assert divergence_rows.kl_divergences_nats(merged).tolist() == pytest.approx([0.0, 18.42], abs=1e-2)
