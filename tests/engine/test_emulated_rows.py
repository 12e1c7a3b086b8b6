"""Picks, draws and judgements of the emulated model follow the rules of sampling/, without torch.

Statistical checks have a false-alarm rate of 1e-6 each; sample sizes are stated where samples are drawn.
"""

import math
import struct
from collections.abc import Mapping

import pytest
import torch

from speculative.engine.emulated_laws import RawLaw
from speculative.engine.emulated_rows import EmulatedRows, entropy_nats, warp
from speculative.engine.interface import Draw, DrawRequest, Judgement, JudgeRequest, PickRequest, Picks, RowRequest
from speculative.engine.rows import TorchRows
from speculative.sampling import distribution
from speculative.sampling import warp as torch_warp
from speculative.sampling.adasd import Adasd
from speculative.sampling.types import AdasdOptions, AdasdVariant, SamplingParams, Signal, SparseLaw
from tests.support.statistics import assert_follows

VOCAB_SIZE = 260
TARGET = RawLaw((7, 0, 12, 5), (8.0, 4.0, 2.0, 1.0))
OTHER = RawLaw((0, 9, 7), (5.0, 3.0, 1.0))
GREEDY = SamplingParams(temperature=0.0)
NEUTRAL = SamplingParams()
SAMPLINGS = [NEUTRAL, SamplingParams(temperature=0.6, top_k=3), SamplingParams(temperature=1.5, top_p=0.8, min_p=0.1)]


def answer(request: RowRequest, *laws: RawLaw) -> Picks | Draw | Judgement:
    [outcome] = EmulatedRows(laws, VOCAB_SIZE).answer([request])
    return outcome


def pick(law: RawLaw, params: SamplingParams, seed: int = 0, position: int = 5) -> int:
    outcome = answer(PickRequest(0, 1, position, params, seed), law)
    assert isinstance(outcome, Picks)
    return outcome.token_ids[0]


def draw(law: RawLaw, params: SamplingParams, seed: int = 0, position: int = 5, base_len: int = 5) -> Draw:
    outcome = answer(DrawRequest(0, position, base_len, params, seed), law)
    assert isinstance(outcome, Draw)
    return outcome


def warped(law: RawLaw, params: SamplingParams = NEUTRAL) -> dict[int, float]:
    return warp(dict(zip(law.token_ids, law.weights, strict=True)), params)


def test_neutral_parameters_only_normalise() -> None:
    assert warped(TARGET) == pytest.approx({7: 8 / 15, 0: 4 / 15, 12: 2 / 15, 5: 1 / 15})


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (GREEDY, {7: 1.0}),
        (SamplingParams(temperature=1e-6), {7: 1.0}),
        (SamplingParams(temperature=5e-324), {7: 1.0}),
        (SamplingParams(temperature=1e30), {7: 0.25, 0: 0.25, 12: 0.25, 5: 0.25}),
        (SamplingParams(temperature=0.5), {7: 64 / 85, 0: 16 / 85, 12: 4 / 85, 5: 1 / 85}),
        (SamplingParams(top_k=1), {7: 1.0}),
        (SamplingParams(top_k=2), {7: 2 / 3, 0: 1 / 3}),
        (SamplingParams(top_k=100), {7: 8 / 15, 0: 4 / 15, 12: 2 / 15, 5: 1 / 15}),
        (SamplingParams(top_p=0.5), {7: 1.0}),
        (SamplingParams(top_p=0.79), {7: 2 / 3, 0: 1 / 3}),
        (SamplingParams(top_p=0.81), {7: 8 / 14, 0: 4 / 14, 12: 2 / 14}),
        (SamplingParams(top_p=1e-9), {7: 1.0}),
        (SamplingParams(min_p=0.25), {7: 8 / 14, 0: 4 / 14, 12: 2 / 14}),
        (SamplingParams(min_p=1.0), {7: 1.0}),
        (SamplingParams(top_k=3, top_p=0.85), {7: 2 / 3, 0: 1 / 3}),  # of the mass that top-k left
        (SamplingParams(temperature=2.0, min_p=0.6), {7: 0.585786, 0: 0.414214}),  # after the temperature
    ],
)
def test_warping_gives_the_defined_law(params: SamplingParams, expected: Mapping[int, float]) -> None:
    assert warped(TARGET, params) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "params",
    [
        *SAMPLINGS,
        GREEDY,
        SamplingParams(top_k=2),
        SamplingParams(top_p=0.6),
        SamplingParams(min_p=0.5),
        SamplingParams(temperature=0.8, top_k=5, top_p=0.9, min_p=0.05),
    ],
)
def test_warping_is_that_of_real_models(params: SamplingParams) -> None:
    """Against the torch warper, on 40 laws of 8 ids, two of them equally likely."""
    generator = torch.Generator().manual_seed(3)
    for _ in range(40):
        ids = torch.randperm(VOCAB_SIZE, generator=generator)[:8].tolist()
        weights = torch.rand(8, generator=generator, dtype=torch.float64).add(0.01).tolist()
        weights[1] = weights[0]
        logits = torch.full((1, VOCAB_SIZE), -torch.inf)
        logits[0, ids] = torch.tensor(weights).log().float()
        real = torch_warp.warp(logits, [params]).double().softmax(-1)[0]
        law = warp(dict(zip(ids, weights, strict=True)), params)
        assert law == pytest.approx({each: float(real[each]) for each in law}, abs=1e-6)
        assert math.isclose(math.fsum(law.values()), 1.0)


def test_greedy_takes_the_lowest_id_of_a_tie() -> None:
    assert pick(RawLaw((9, 4, 6), (3.0, 3.0, 3.0)), GREEDY) == 4
    assert draw(RawLaw((9, 4, 6), (3.0, 3.0, 1.0)), GREEDY).token_id == 4


def test_padding_rows_never_come_out_and_change_nothing() -> None:
    padded = RawLaw((VOCAB_SIZE, 300, *TARGET.token_ids), (100.0, 50.0, *TARGET.weights))
    for seed in range(200):
        for params in (GREEDY, *SAMPLINGS):
            assert pick(padded, params, seed) == pick(TARGET, params, seed)
            assert draw(padded, params, seed) == draw(TARGET, params, seed)


@pytest.mark.parametrize("params", SAMPLINGS)
def test_coupled_picks_follow_the_warped_law(params: SamplingParams) -> None:
    """2,000 picks at different seeds, then 2,000 at different positions."""
    assert_follows((pick(TARGET, params, seed=seed) for seed in range(2000)), warped(TARGET, params))
    assert_follows((pick(TARGET, params, position=p) for p in range(2000)), warped(TARGET, params))


def test_coupled_picks_of_similar_laws_mostly_match() -> None:
    """At least (1 - TV) / (1 + TV) of 2,000 (arXiv 2408.07978), here with TV 2 / 30."""
    near = RawLaw(TARGET.token_ids, (7.0, 5.0, 2.0, 1.0))
    matches = sum(pick(TARGET, NEUTRAL, seed) == pick(near, NEUTRAL, seed) for seed in range(2000))
    assert matches / 2000 > (1 - 2 / 30) / (1 + 2 / 30) - 0.02


def test_all_rows_of_a_request_are_picked_at_their_positions() -> None:
    outcome = answer(PickRequest(1, 2, 30, NEUTRAL, 11, want_entropy=True), OTHER, TARGET, OTHER)
    assert isinstance(outcome, Picks)
    assert outcome.token_ids == (pick(TARGET, NEUTRAL, 11, 30), pick(OTHER, NEUTRAL, 11, 31))
    assert outcome.entropies_nats == (entropy_nats(warped(TARGET)), entropy_nats(warped(OTHER)))


def test_entropies_are_of_the_warped_law_and_only_there_when_wanted() -> None:
    def entropies(params: SamplingParams, *, wanted: bool) -> tuple[float, ...]:
        outcome = answer(PickRequest(0, 1, 0, params, 0, want_entropy=wanted), RawLaw((1, 2), (1.0, 1.0)))
        assert isinstance(outcome, Picks)
        return outcome.entropies_nats

    assert entropies(NEUTRAL, wanted=True) == pytest.approx((math.log(2),))
    assert entropies(GREEDY, wanted=True) == pytest.approx((math.log(2),))  # of the law that is not one-hot yet
    assert entropies(NEUTRAL, wanted=False) == ()


@pytest.mark.parametrize("params", SAMPLINGS)
def test_drawn_tokens_follow_the_law_that_is_sent(params: SamplingParams) -> None:
    """2,000 draws at different seeds."""
    draws = [draw(TARGET, params, seed) for seed in range(2000)]
    assert len({each.law for each in draws}) == 1
    assert_follows((each.token_id for each in draws), distribution.probabilities(draws[0].law))
    assert draws[0].entropy_nats == entropy_nats(warped(TARGET, params))


def test_sent_weights_are_exact_in_fp16() -> None:
    weights = draw(RawLaw((1, 2, 3), (0.7, 0.1, 0.3)), NEUTRAL).law.weights
    assert struct.unpack("<3e", struct.pack("<3e", *weights)) == weights


def test_a_greedy_draw_sends_a_one_hot_law() -> None:
    assert draw(TARGET, GREEDY).law == SparseLaw((7,), (1.0,))


def test_a_position_drafted_again_gets_a_fresh_number() -> None:
    """Of 400 pairs of draws with different base lengths, as many are equal as of independent draws, give or take."""
    same = sum(draw(TARGET, NEUTRAL, s, 9, 8).token_id == draw(TARGET, NEUTRAL, s, 9, 9).token_id for s in range(400))
    expected = 400 * sum(probability**2 for probability in warped(TARGET).values())
    assert abs(same - expected) < 5 * math.sqrt(expected)
    assert draw(TARGET, NEUTRAL, 3, 9, 8) == draw(TARGET, NEUTRAL, 3, 9, 8)


def judge(laws: tuple[RawLaw, ...], drafts: tuple[RawLaw, ...], params: SamplingParams, seed: int) -> tuple[int, ...]:
    """Drafts a chunk from `drafts` and judges it by `laws`; the committed tokens."""
    drawn = [draw(law, params, seed, 5 + index) for index, law in enumerate(drafts)]
    chunk = tuple(each.token_id for each in drawn)
    request = JudgeRequest(0, 5, chunk, tuple(each.law for each in drawn), params, seed)
    outcome = answer(request, *laws)
    assert isinstance(outcome, Judgement)
    return (*chunk[: outcome.accepted_len], outcome.next_token_id)


@pytest.mark.parametrize("params", [NEUTRAL, SAMPLINGS[2]])
def test_rejection_gives_the_target_s_law_whatever_the_draft(params: SamplingParams) -> None:
    """First tokens of 2,000 chunks for each draft: another law, the same, a one-hot one, one of disjoint support."""
    for drafted in (OTHER, TARGET, RawLaw((12,), (1.0,)), RawLaw((40, 41), (2.0, 1.0))):
        firsts = (judge((TARGET, OTHER), (drafted,), params, seed)[0] for seed in range(2000))
        assert_follows(firsts, warped(TARGET, params))


def test_second_tokens_have_the_target_s_law_too() -> None:
    """Of 3,000 chunks of two: the second token, where the first one stood."""
    committed = (judge((TARGET, TARGET, OTHER), (OTHER, OTHER), NEUTRAL, seed) for seed in range(3_000))
    assert_follows((tokens[1] for tokens in committed if len(tokens) > 1), warped(TARGET))


def test_an_equal_draft_is_always_accepted_and_a_bonus_follows() -> None:
    """Weights that fp16 holds exactly, so the laws are equal to the last bit; 1,000 bonus tokens."""
    committed = [judge((TARGET, TARGET, OTHER), (TARGET, TARGET), NEUTRAL, seed) for seed in range(1000)]
    assert {len(tokens) for tokens in committed} == {3}
    assert_follows((tokens[2] for tokens in committed), warped(OTHER))


def test_a_draft_token_that_the_target_excludes_is_always_rejected() -> None:
    for seed in range(200):
        assert judge((TARGET, OTHER), (RawLaw((40,), (1.0,)),), NEUTRAL, seed)[0] in TARGET.token_ids


def test_greedy_rejection_compares_the_likeliest_tokens() -> None:
    assert judge((TARGET, OTHER), (TARGET,), GREEDY, 1) == (7, 0)
    assert judge((TARGET, OTHER), (OTHER,), GREEDY, 1) == (7,)


def test_an_empty_chunk_is_one_draw_from_the_target() -> None:
    """2,000 of them."""
    assert_follows((judge((TARGET,), (), NEUTRAL, seed)[0] for seed in range(2000)), warped(TARGET))


@pytest.mark.parametrize("params", [GREEDY, *SAMPLINGS])
def test_measures_are_those_of_real_models(params: SamplingParams) -> None:
    """Against the torch rows, on logits with the same laws."""
    laws = [TARGET, OTHER, RawLaw((5, 9), (2.0, 1.0))]
    logits = torch.full((len(laws), VOCAB_SIZE), -torch.inf)
    for row, law in enumerate(laws):
        logits[row, list(law.token_ids)] = torch.tensor(law.weights).log()
    told = PickRequest(0, 3, 5, params, 1, want_entropy=True, want_prob=True, want_law=True)
    (real,), (emulated,) = (rows.answer([told]) for rows in (TorchRows(logits, VOCAB_SIZE), EmulatedRows(laws, 260)))
    assert isinstance(real, Picks)
    assert isinstance(emulated, Picks)
    assert emulated.token_ids == real.token_ids
    assert emulated.entropies_nats == pytest.approx(real.entropies_nats, abs=1e-6)
    assert emulated.probs == pytest.approx(real.probs, abs=1e-6)
    assert [law.token_ids for law in emulated.laws] == [law.token_ids for law in real.laws]
    signals = frozenset({Signal.KL, Signal.JS_DISTANCE, Signal.TARGET_ENTROPY})
    drafts = (SparseLaw((0, 7), (1.0, 0.5), 0.25), SparseLaw((9, 3), (1.0, 0.25)))
    for request in (
        PickRequest(0, 3, 5, params, 1, draft_laws=drafts, signals=signals),
        JudgeRequest(0, 5, (7, 9), drafts, params, 1, signals=signals),
    ):
        (real,), (emulated,) = (rows.answer([request]) for rows in (TorchRows(logits, 260), EmulatedRows(laws, 260)))
        assert not isinstance(real, Draw)
        assert not isinstance(emulated, Draw)
        assert emulated.signals.kl_nats == pytest.approx(real.signals.kl_nats, abs=1e-5)
        assert emulated.signals.js_distance == pytest.approx(real.signals.js_distance, abs=1e-5)
        assert emulated.signals.target_entropies_nats == pytest.approx(real.signals.target_entropies_nats, abs=1e-5)
        assert len(emulated.signals.kl_nats) == 2


@pytest.mark.parametrize("params", [GREEDY, *SAMPLINGS])
def test_adasd_judges_as_over_real_models(params: SamplingParams) -> None:
    laws = [TARGET, OTHER, RawLaw((5, 9), (2.0, 1.0))]
    logits = torch.full((len(laws), VOCAB_SIZE), -torch.inf)
    for row, law in enumerate(laws):
        logits[row, list(law.token_ids)] = torch.tensor(law.weights).log()
    drafts = (SparseLaw((7, 0), (1.0, 0.75), 0.125), SparseLaw((9, 0), (1.0, 0.25)))
    options = AdasdOptions(AdasdVariant.MIDPOINT)
    real, emulated = Adasd(options, raw=params.greedy), Adasd(options, raw=params.greedy)
    for seed in range(20):
        base_len = 5 + seed
        ours = JudgeRequest(0, base_len, (7, 9), drafts, params, seed, adasd=emulated)
        theirs = JudgeRequest(0, base_len, (7, 9), drafts, params, seed, adasd=real)
        assert EmulatedRows(laws, VOCAB_SIZE).answer([ours]) == TorchRows(logits, VOCAB_SIZE).answer([theirs])
    assert (emulated.threshold is None) == (real.threshold is None)
