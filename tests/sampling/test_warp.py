"""Warped laws are those of transformers' own warpers, made exact at ties and safe at extremes."""

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from speculative.sampling.types import SamplingParams
from speculative.sampling.warp import WarpedRows, warp, warp_rows

VARIED = [
    SamplingParams(temperature, top_k, top_p, min_p)
    for temperature, top_k, top_p, min_p in itertools.product(
        (0.3, 1.0, 1.7), (0, 1, 50, 300), (0.2, 0.95, 1.0), (0.0, 0.03)
    )
]


def random_logits(rows: int, vocab_size: int, *, spread: float = 4.0, seed: int = 3) -> Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * spread


def by_transformers(logits: Tensor, params: SamplingParams) -> Tensor:
    """Warped logits of one row [1, V]."""
    warpers: list[LogitsProcessor] = [TemperatureLogitsWarper(params.temperature)]
    if params.top_k:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        warpers.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        warpers.append(MinPLogitsWarper(params.min_p))
    scores: Tensor = LogitsProcessorList(warpers)(torch.LongTensor([[0]]), torch.FloatTensor(logits))
    return scores


def by_definition(logits: Sequence[float], params: SamplingParams) -> dict[int, float]:
    """The law (id -> probability) in plain Python, ranks by (logit, lower id first)."""
    ranked = sorted(range(len(logits)), key=lambda token_id: (-logits[token_id], token_id))
    if params.greedy:
        return {ranked[0]: 1.0}
    top = logits[ranked[0]]
    weights = {each: math.exp((logits[each] - top) / params.temperature) for each in ranked}
    kept = ranked[: params.top_k or None]
    total, before = math.fsum(weights[each] for each in kept), 0.0
    reached = []
    for each in kept:
        if before < params.top_p * total or params.top_p == 1.0:
            reached.append(each)
        before += weights[each]
    final = {each: weights[each] for each in reached if weights[each] >= params.min_p and weights[each] > 0.0}
    return {each: weight / math.fsum(final.values()) for each, weight in final.items()}


def support(scores: Tensor) -> list[int]:
    ids: list[int] = scores.isfinite().nonzero().flatten().tolist()
    return ids


@pytest.mark.parametrize("vocab_size", [400, 6000])
def test_laws_are_those_of_transformers(vocab_size: int) -> None:
    logits = random_logits(len(VARIED), vocab_size)
    warped = warp(logits, VARIED)
    for row, params in enumerate(VARIED):
        expected = by_transformers(logits[row : row + 1], params)[0]
        assert support(warped[row]) == support(expected), params
        torch.testing.assert_close(warped[row].softmax(-1), expected.softmax(-1), rtol=1e-4, atol=1e-7)


@settings(deadline=None)
@given(
    logits=st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=200),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3, 64, 199, 1000]),
    top_p=st.sampled_from([0.01, 0.37, 0.93, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_ties_are_cut_by_id(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    params = SamplingParams(temperature, top_k, top_p, min_p)
    warped = warp(torch.tensor([logits]), [params])[0]
    expected = by_definition(logits, params)
    assert support(warped) == sorted(expected)
    law = warped.double().softmax(-1)
    assert all(law[token_id].item() == pytest.approx(prob, rel=1e-5) for token_id, prob in expected.items())


@settings(deadline=None)
@given(
    temperature=st.floats(0.0, 1e30),
    top_k=st.integers(0, 2000),
    top_p=st.floats(0.0, 1.0, exclude_min=True),
    min_p=st.floats(0.0, 1.0),
    spread=st.sampled_from([0.0, 1e-3, 1.0, 1e3, 1e30]),
    seed=st.integers(0, 1000),
)
def test_the_most_likely_token_always_stays_and_nothing_is_nan(
    temperature: float, top_k: int, top_p: float, min_p: float, spread: float, seed: int
) -> None:
    logits = random_logits(1, 500, spread=spread, seed=seed)
    warped = warp(logits, [SamplingParams(temperature, top_k, top_p, min_p)])[0]
    assert not warped.isnan().any()
    assert warped[logits.argmax()] == 0.0 == warped.max()


def test_top_k_keeps_exactly_k_of_equal_tokens() -> None:
    warped = warp(torch.zeros(1, 10_000), [SamplingParams(top_k=70)])[0]
    assert support(warped) == list(range(70))


def test_reduced_precision_ties_are_cut_by_id() -> None:
    logits = random_logits(2, 5000).bfloat16()
    warped = warp(logits, [SamplingParams(top_k=40), SamplingParams(top_p=0.9)])
    for row, params in enumerate((SamplingParams(top_k=40), SamplingParams(top_p=0.9))):
        assert support(warped[row]) == sorted(by_definition(logits[row].float().tolist(), params))


def test_top_p_of_a_flat_law_keeps_its_share() -> None:
    """Needs more than the first and the second set of sorted tokens."""
    params = [SamplingParams(top_p=0.5), SamplingParams(top_p=0.01), SamplingParams(top_p=0.2)]
    kept = warp(torch.zeros(3, 20_000), params).isfinite()
    assert kept.sum(-1).tolist() == pytest.approx([10_000, 200, 4000], abs=1)
    assert kept[0, :9_999].all()


def test_top_p_one_and_neutral_values_cut_nothing() -> None:
    logits = random_logits(3, 3000, spread=8.0)
    neutral = warp(logits, [SamplingParams(), SamplingParams(top_k=3000), SamplingParams(top_p=1.0, min_p=0.0)])
    assert neutral.isfinite().all()


def test_top_k_with_top_p_one_keeps_tokens_of_tiny_mass() -> None:
    logits = torch.zeros(1, 2000)
    logits[0, :50] = torch.linspace(80.0, 1.0, 50)
    assert support(warp(logits, [SamplingParams(top_k=50)])[0]) == list(range(50))


def test_min_p_one_keeps_all_equally_most_likely() -> None:
    warped = warp(torch.tensor([[1.0, 3.0, 3.0, 2.9]]), [SamplingParams(min_p=1.0)])[0]
    assert support(warped) == [1, 2]


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-300])
def test_tiny_temperatures_are_nearly_greedy(temperature: float) -> None:
    logits = random_logits(4, 1000)
    warped = warp(logits, [SamplingParams(temperature)] * 4)
    assert warped.softmax(-1).amax(-1).tolist() == [1.0] * 4
    assert torch.equal(warped.argmax(-1), logits.argmax(-1))


@pytest.mark.parametrize("temperature", [1e6, 1e30, 1e300])
def test_huge_temperatures_are_nearly_uniform_and_spare_cut_tokens(temperature: float) -> None:
    logits = random_logits(1, 1000)
    logits[0, 7] = -torch.inf
    law = warp(logits, [SamplingParams(temperature)])[0].softmax(-1)
    assert law[7] == 0.0
    assert law[law > 0.0].min().item() == pytest.approx(1 / 999, rel=1e-4)


def test_a_mixed_batch_is_warped_as_row_by_row() -> None:
    params = [*VARIED, SamplingParams(temperature=0.0), SamplingParams(temperature=1e6, top_p=0.9)]
    logits = random_logits(len(params), 5000)
    alone = torch.cat([warp(logits[row : row + 1], [each]) for row, each in enumerate(params)])
    together = warp(logits, params)
    assert torch.equal(together, alone)


def test_rows_can_be_asked_for_in_any_order_and_twice() -> None:
    logits = random_logits(3, 800)
    params = [SamplingParams(), SamplingParams(top_k=5), SamplingParams(), SamplingParams(temperature=0.0)]
    rows = [2, 0, 2, 1]
    expected = warp(logits[rows], params)
    groups = list(warp_rows(logits, rows, params))
    assert sorted(number for group in groups for number in group.rows) == [0, 1, 2, 3]
    for group in groups:
        assert torch.equal(group.dense(800), expected[list(group.rows)])


def test_logits_are_left_as_they_were() -> None:
    logits = random_logits(4, 700)
    before = logits.clone()
    warp(logits, [SamplingParams(), SamplingParams(0.5, 3, 0.9, 0.1), SamplingParams(top_p=0.9), SamplingParams(0.0)])
    assert torch.equal(logits, before)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(0.0), SamplingParams(top_k=5), SamplingParams(top_p=0.9)]
)
def test_a_row_without_a_finite_largest_logit_is_named(params: SamplingParams, broken: float) -> None:
    logits = random_logits(4, 1000)
    logits[1, 500] = broken
    logits[2] = -torch.inf
    groups = list(warp_rows(logits, range(4), [params] * 4))
    finite = {number: flag for group in groups for number, flag in zip(group.rows, group.finite.tolist(), strict=True)}
    assert finite == {0: True, 1: False, 2: False, 3: True}


def group_of(params: SamplingParams, logits: Tensor) -> WarpedRows:
    (group,) = warp_rows(logits, range(len(logits)), [params] * len(logits))
    return group


GROUPS = {
    "unsorted": SamplingParams(0.7),
    "unsorted, min-p": SamplingParams(0.7, min_p=0.05),
    "sorted": SamplingParams(0.7, 40, 0.9),
    "one-hot": SamplingParams(0.0),
}


@pytest.mark.parametrize("params", GROUPS.values(), ids=GROUPS)
def test_entropies_and_totals_are_those_of_the_warped_law(params: SamplingParams) -> None:
    logits = random_logits(3, 2000)
    group = group_of(params, logits)
    law = group.dense(2000).double().softmax(-1)
    expected = torch.special.entr(law).sum(-1)
    torch.testing.assert_close(group.entropies_nats(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(group.log_totals(), group.dense(2000).double().logsumexp(-1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("params", GROUPS.values(), ids=GROUPS)
def test_scores_of_single_ids_are_those_of_the_dense_row(params: SamplingParams) -> None:
    logits = random_logits(3, 2000)
    group = group_of(params, logits)
    for token_ids in (logits.argmax(-1), logits.argmin(-1), torch.tensor([0, 5, 1999])):
        several = torch.stack([token_ids, token_ids.flip(0)], dim=-1)
        assert torch.equal(group.scores_of(several), group.dense(2000).gather(-1, several))
        probs = group.dense(2000).double().softmax(-1).gather(-1, token_ids[:, None])[:, 0]
        torch.testing.assert_close(group.probs_of(token_ids), probs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("params", GROUPS.values(), ids=GROUPS)
def test_the_most_likely_come_in_order(params: SamplingParams) -> None:
    logits = random_logits(3, 2000)
    token_ids, scores = group_of(params, logits).most_likely(10)
    ranked = logits.sort(-1, descending=True).indices
    for row in range(3):
        kept = scores[row].isfinite()
        assert kept[0]
        assert token_ids[row][kept].tolist() == ranked[row][: int(kept.sum())].tolist()
        assert scores[row].tolist() == sorted(scores[row].tolist(), reverse=True)
