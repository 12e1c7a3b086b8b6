"""The rows of a torch model answer every request as if it were alone, by the rules of sampling/."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from speculative.engine.interface import (
    Draw,
    DrawRequest,
    Judgement,
    JudgeRequest,
    PickRequest,
    Picks,
    RowOutcome,
    RowRequest,
)
from speculative.engine.rows import TorchRows
from speculative.sampling import acceptance, counter, coupling, distribution, divergence, divergence_rows
from speculative.sampling.adasd import Adasd, Evidence
from speculative.sampling.counter import Stream, row_key
from speculative.sampling.types import (
    NO_SIGNALS,
    AdasdOptions,
    AdasdVariant,
    SamplingParams,
    Signal,
    Signals,
    SparseLaw,
)
from speculative.sampling.warp import WarpedRows, warp
from tests.support.statistics import assert_follows

VOCAB_SIZE = 1100
GREEDY = SamplingParams(temperature=0.0)
VERIFIER_SIGNALS = frozenset({Signal.KL, Signal.JS_DISTANCE, Signal.TARGET_ENTROPY})
PARAMS = {
    "greedy": GREEDY,
    "neutral": SamplingParams(),
    "tempered": SamplingParams(0.7),
    "top-k": SamplingParams(0.9, 40),
    "top-p": SamplingParams(1.0, 0, 0.9),
    "min-p": SamplingParams(1.3, min_p=0.02),
    "all cuts": SamplingParams(0.8, 50, 0.95, 0.01),
    "tiny": SamplingParams(1e-6),
    "huge": SamplingParams(1e6),
}


def random_logits(rows: int, vocab_size: int = VOCAB_SIZE, *, seed: int = 5) -> Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3.0


def target_laws(logits: Tensor, params: SamplingParams) -> list[dict[int, float]]:
    laws = warp(logits, [params] * len(logits)).double().softmax(-1)
    return [{token_id: prob for token_id, prob in enumerate(law.tolist()) if prob > 0.0} for law in laws]


def picks(outcome: RowOutcome) -> Picks:
    assert isinstance(outcome, Picks)
    return outcome


def draw(outcome: RowOutcome) -> Draw:
    assert isinstance(outcome, Draw)
    return outcome


def judgement(outcome: RowOutcome) -> Judgement:
    assert isinstance(outcome, Judgement)
    return outcome


def drafted_chunk(
    logits: Tensor, params: SamplingParams, *, base_len: int, seed: int
) -> tuple[tuple[int, ...], tuple[SparseLaw, ...]]:
    """A draft token and its law from each row."""
    requests = [DrawRequest(row, base_len + row, base_len, params, seed) for row in range(len(logits))]
    drawn = [draw(outcome) for outcome in TorchRows(logits, logits.shape[-1]).answer(requests)]
    return tuple(each.token_id for each in drawn), tuple(each.law for each in drawn)


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_picks_are_those_of_the_race_on_the_warped_law(params: SamplingParams) -> None:
    logits = random_logits(6)
    (outcome,) = TorchRows(logits, VOCAB_SIZE).answer([PickRequest(0, 6, 40, params, 9)])
    expected = tuple(
        counter.race(row_key(9, Stream.RACE, 40 + row), law.items())
        for row, law in enumerate(target_laws(logits, params))
    )
    assert outcome == Picks(expected, ())


def test_picks_depend_on_absolute_position_and_not_on_how_rows_are_asked_for() -> None:
    logits = random_logits(8)
    rows = TorchRows(logits, VOCAB_SIZE)
    whole = picks(rows.answer([PickRequest(0, 8, 100, SamplingParams(), 3)])[0]).token_ids
    pieces = rows.answer([PickRequest(5, 3, 105, SamplingParams(), 3), PickRequest(0, 5, 100, SamplingParams(), 3)])
    assert picks(pieces[1]).token_ids + picks(pieces[0]).token_ids == whole


def test_greedy_picks_are_the_likeliest_and_the_lowest_id_on_a_tie() -> None:
    logits = random_logits(3)
    logits[1, [900, 4, 1099]] = 50.0
    logits[2] = 0.0
    (outcome,) = TorchRows(logits, VOCAB_SIZE).answer([PickRequest(0, 3, 7, GREEDY, 1)])
    assert picks(outcome).token_ids == (int(logits[0].argmax()), 4, 0)


def test_greedy_rows_cost_no_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("greedy needs no numbers")

    monkeypatch.setattr(coupling, "race", refuse)
    monkeypatch.setattr(coupling, "race_exact", refuse)
    monkeypatch.setattr(counter, "row_key", refuse)
    monkeypatch.setattr("speculative.engine.rows.row_key", refuse)
    (outcome,) = TorchRows(random_logits(2), VOCAB_SIZE).answer([PickRequest(0, 2, 7, GREEDY, 1, want_entropy=True)])
    assert len(picks(outcome).token_ids) == 2


@pytest.mark.parametrize("temperature", [1e-6, 1e-12])
def test_a_tiny_temperature_picks_as_greedy_does(temperature: float) -> None:
    rows = TorchRows(random_logits(5), VOCAB_SIZE)
    tiny, greedy = rows.answer([PickRequest(0, 5, 3, SamplingParams(temperature), 2), PickRequest(0, 5, 3, GREEDY, 2)])
    assert tiny == greedy


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_padding_ids_never_come_out(params: SamplingParams, dtype: torch.dtype) -> None:
    logits = random_logits(4)
    padded = torch.cat([logits, torch.full((4, 50), 60.0)], dim=-1).to(dtype)
    requests: list[RowRequest] = [
        PickRequest(0, 4, 1, params, 3, want_entropy=True),
        DrawRequest(1, 5, 5, params, 3),
        JudgeRequest(2, 9, (7,), (SparseLaw((7, 8), (1.0, 1.0)),), params, 3),
    ]
    assert TorchRows(padded, VOCAB_SIZE).answer(requests) == TorchRows(logits.to(dtype), VOCAB_SIZE).answer(requests)


def test_a_doubtful_race_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.zeros(60, 4000)
    request = PickRequest(0, 60, 8, SamplingParams(), 4)
    certain = TorchRows(logits, 4000).answer([request])
    monkeypatch.setattr(coupling, "_FINALISTS", 1)
    result = coupling.race(logits, [row_key(4, Stream.RACE, 8 + row) for row in range(60)])
    assert not result.certified.all()
    assert TorchRows(logits, 4000).answer([request]) == certain


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_entropies_are_those_of_the_warped_law(params: SamplingParams) -> None:
    logits = random_logits(3)
    (outcome,) = TorchRows(logits, VOCAB_SIZE).answer([PickRequest(0, 3, 7, params, 1, want_entropy=True)])
    laws = target_laws(logits, SamplingParams() if params.greedy else params)
    expected = [-math.fsum(prob * math.log(prob) for prob in law.values()) for law in laws]
    assert picks(outcome).entropies_nats == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_greedy_entropy_is_that_at_temperature_one() -> None:
    rows = TorchRows(torch.zeros(1, 64), 64)
    pick, drawn = rows.answer([PickRequest(0, 1, 0, GREEDY, 1, want_entropy=True), DrawRequest(0, 0, 0, GREEDY, 1)])
    assert picks(pick).entropies_nats == pytest.approx((math.log(64),))
    assert draw(drawn).entropy_nats == pytest.approx(math.log(64))


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_a_draw_comes_from_the_law_it_reports(params: SamplingParams) -> None:
    logits = random_logits(1)
    (outcome,) = TorchRows(logits, VOCAB_SIZE).answer([DrawRequest(0, 20, 17, params, 6)])
    drawn = draw(outcome)
    (law,) = target_laws(logits, params)
    expected = distribution.sparsify(law)
    assert drawn.law.token_ids == expected.token_ids
    assert drawn.law.weights == pytest.approx(expected.weights, rel=2**-10)
    assert drawn.law.tail_mass == pytest.approx(expected.tail_mass, abs=1e-5)
    assert drawn.token_id == distribution.draw(drawn.law, row_key(6, Stream.DRAFT, 20, 17))
    assert drawn.law == distribution.quantise(drawn.law.token_ids, drawn.law.weights, drawn.law.tail_mass)


def test_a_greedy_draw_is_one_hot() -> None:
    logits = random_logits(1)
    logits[0, 0] = 90.0
    (outcome,) = TorchRows(logits, VOCAB_SIZE).answer([DrawRequest(0, 20, 17, GREEDY, 6)])
    assert draw(outcome).token_id == 0
    assert draw(outcome).law == distribution.one_hot(0)


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("agreeing", [True, False])
def test_judgements_are_those_of_the_plain_rule(params: SamplingParams, agreeing: bool) -> None:
    """Against acceptance.judge, for 15 chunks of 4 tokens."""
    for seed in range(15):
        logits = random_logits(5, seed=seed)
        draft_logits = logits[:4] + random_logits(4, seed=1000 + seed) * (0.1 if agreeing else 1.0)
        drafted, laws = drafted_chunk(draft_logits, params, base_len=30, seed=seed)
        targets = target_laws(logits, params)
        (outcome,) = TorchRows(logits, VOCAB_SIZE).answer([JudgeRequest(0, 30, drafted, laws, params, seed)])
        assert outcome == Judgement(*acceptance.judge(drafted, laws, targets.__getitem__, seed=seed, base_len=30))


def test_an_empty_chunk_is_judged_by_a_bonus_token() -> None:
    logits = random_logits(1)
    (outcome,) = TorchRows(logits, VOCAB_SIZE).answer([JudgeRequest(0, 30, (), (), SamplingParams(), 8)])
    expected = counter.race(row_key(8, Stream.RECOVER, 30, 30), target_laws(logits, SamplingParams())[0].items())
    assert outcome == Judgement(0, expected)


def test_a_residual_of_zero_draws_from_the_target() -> None:
    """The draft's law covers the target's on all its ids, and the draft token is not among them."""
    logits = torch.full((2, 10), -torch.inf)
    logits[:, 3] = 0.0
    law = SparseLaw((3, 5), (1.0, 2.0**-24))
    # Probability 1 - 6e-8 for id 3: within a float32 of the target's 1, so next to nothing is left.
    for seed in range(50):
        (outcome,) = TorchRows(logits, 10).answer([JudgeRequest(0, 4, (5,), (law,), SamplingParams(), seed)])
        assert outcome == Judgement(0, 3)
    exhausted = SparseLaw((3,), (1.0,))
    (outcome,) = TorchRows(logits, 10).answer([JudgeRequest(0, 4, (5,), (exhausted,), SamplingParams(), 1)])
    assert outcome == Judgement(0, 3)


def test_a_greedy_judgement_is_a_comparison() -> None:
    logits = random_logits(3)
    best = tuple(logits.argmax(-1).tolist())
    other = (best[1] + 1) % VOCAB_SIZE
    rows = TorchRows(logits, VOCAB_SIZE)

    def outcome(*drafted: int) -> RowOutcome:
        laws = tuple(distribution.one_hot(token_id) for token_id in drafted)
        return rows.answer([JudgeRequest(0, 12, drafted, laws, GREEDY, 5)])[0]

    assert outcome(best[0], best[1]) == Judgement(2, best[2])
    assert outcome(best[0], other) == Judgement(1, best[1])
    assert outcome(other, best[1]) == Judgement(0, best[0])


def test_judged_output_has_the_target_s_law() -> None:
    """3,000 seeds in one batch, drafted from another law; false-alarm rate 1e-6."""
    target, draft_logits = random_logits(1, 12, seed=1), random_logits(1, 12, seed=2)
    seeds = range(3000)
    drawn = TorchRows(draft_logits, 12).answer([DrawRequest(0, 6, 6, SamplingParams(), seed) for seed in seeds])
    requests = [
        JudgeRequest(2 * row, 6, (draw(each).token_id,), (draw(each).law,), SamplingParams(), seed)
        for row, (seed, each) in enumerate(zip(seeds, drawn, strict=True))
    ]
    outcomes = TorchRows(target.expand(2 * len(seeds), -1), 12).answer(requests)
    first = [
        request.draft_token_ids[0] if judgement(outcome).accepted_len else judgement(outcome).next_token_id
        for request, outcome in zip(requests, outcomes, strict=True)
    ]
    assert 0 < sum(judgement(outcome).accepted_len for outcome in outcomes) < len(seeds)
    (law,) = target_laws(target, SamplingParams())
    assert_follows(first, {token_id: prob / math.fsum(law.values()) for token_id, prob in law.items()})


def mixed_requests(logits: Tensor) -> list[RowRequest]:
    """Requests of every kind and parameters over rows of `logits`, in no order."""
    requests: list[RowRequest] = []
    for number, params in enumerate(PARAMS.values()):
        row = 4 * number
        drafted, laws = drafted_chunk(logits[row + 1 : row + 3] + 0.3, params, base_len=20 + number, seed=number)
        requests += [
            PickRequest(row, 2, 50 + number, params, number, want_entropy=number % 2 == 0),
            JudgeRequest(row, 20 + number, drafted, laws, params, number),
            DrawRequest(row + 3, 70, 65, params, number),
            PickRequest(row, 3, 50, params, number, draft_laws=laws, signals=VERIFIER_SIGNALS),
            PickRequest(row + 1, 2, 50, params, number, draft_laws=laws[:1], signals=frozenset({Signal.KL})),
            PickRequest(row + 3, 1, 50, params, number, want_entropy=True, want_prob=True, want_law=number % 2 == 0),
            JudgeRequest(row, 20 + number, drafted, laws, params, number, signals=VERIFIER_SIGNALS),
        ]
    return [requests[(7 * index) % len(requests)] for index in range(len(requests))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mixed_batch_is_answered_as_one_by_one(dtype: torch.dtype) -> None:
    logits = random_logits(4 * len(PARAMS)).to(dtype)
    rows = TorchRows(logits, VOCAB_SIZE)
    requests = mixed_requests(logits.float())
    together = rows.answer(requests)
    alone = [rows.answer([request])[0] for request in requests]
    assert [without_floats(outcome) for outcome in together] == [without_floats(outcome) for outcome in alone]
    assert [type(outcome) for outcome in together] == [
        {PickRequest: Picks, DrawRequest: Draw, JudgeRequest: Judgement}[type(request)] for request in requests
    ]
    for one, other in zip(together, alone, strict=True):
        assert floats(one) == pytest.approx(floats(other), rel=1e-5, abs=1e-6)


def without_floats(outcome: RowOutcome) -> object:
    """What has to be equal to the bit: tokens and laws, but no entropies and tail masses."""
    match outcome:
        case Picks():
            laws = [dataclasses.replace(law, tail_mass=0.0) for law in outcome.laws]
            return outcome.token_ids, laws, len(outcome.probs), list(map(len, dataclasses.astuple(outcome.signals)))
        case Draw():
            return outcome.token_id, dataclasses.replace(outcome.law, tail_mass=0.0)
        case Judgement():
            return outcome.accepted_len, outcome.next_token_id, list(map(len, dataclasses.astuple(outcome.signals)))


def floats(outcome: RowOutcome) -> Sequence[float]:
    match outcome:
        case Picks():
            tails = [law.tail_mass for law in outcome.laws]
            return [*outcome.entropies_nats, *outcome.probs, *tails, *all_signals(outcome.signals)]
        case Draw():
            return outcome.entropy_nats, outcome.law.tail_mass
        case Judgement():
            return all_signals(outcome.signals)


def all_signals(signals: Signals) -> list[float]:
    return [*signals.kl_nats, *signals.js_distance, *signals.target_entropies_nats]


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_measures_are_of_the_warped_laws_and_at_temperature_zero_of_plain_ones(params: SamplingParams) -> None:
    logits, near = random_logits(3), random_logits(3) + random_logits(3, seed=6) * 0.3
    measured = SamplingParams() if params.greedy else params
    targets, drafts = target_laws(logits, measured), target_laws(near, measured)
    request = PickRequest(0, 3, 9, params, 2, want_entropy=True, want_prob=True, want_law=True)
    told = picks(TorchRows(near, VOCAB_SIZE).answer([request])[0])
    for row, (law, sparse) in enumerate(zip(drafts, told.laws, strict=True)):
        assert told.entropies_nats[row] == pytest.approx(entropy(law), rel=1e-4, abs=1e-6)
        assert told.probs[row] == pytest.approx(law[told.token_ids[row]], rel=1e-4, abs=1e-9)
        expected = distribution.sparsify(law)
        assert sparse.token_ids == expected.token_ids
        assert sparse.tail_mass == pytest.approx(expected.tail_mass, abs=1e-5)
    chunk = PickRequest(0, 3, 9, params, 2, draft_laws=told.laws[:2], signals=VERIFIER_SIGNALS)
    signals = picks(TorchRows(logits, VOCAB_SIZE).answer([chunk])[0]).signals
    for row, sparse in enumerate(told.laws[:2]):
        head = [targets[row].get(token_id, 0.0) for token_id in sparse.token_ids]
        assert signals.kl_nats[row] == pytest.approx(divergence.kl_divergence_nats(head, sparse), abs=1e-5)
        assert signals.js_distance[row] == pytest.approx(divergence.js_distance(head, sparse), abs=1e-4)
        assert signals.target_entropies_nats[row] == pytest.approx(entropy(targets[row]), rel=1e-4, abs=1e-6)


def entropy(law: dict[int, float]) -> float:
    return -math.fsum(prob * math.log(prob) for prob in law.values())


def test_what_is_not_wanted_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("nobody wants it")

    monkeypatch.setattr(WarpedRows, "log_totals_and_entropies", refuse)
    monkeypatch.setattr(WarpedRows, "log_totals", refuse)
    monkeypatch.setattr(divergence_rows, "merge", refuse)
    laws = (distribution.one_hot(1), distribution.one_hot(2))
    for params in PARAMS.values():
        outcome = picks(
            TorchRows(random_logits(3), VOCAB_SIZE).answer([PickRequest(0, 3, 9, params, 2, draft_laws=laws)])[0]
        )
        assert outcome.signals == NO_SIGNALS
        assert outcome.entropies_nats == ()


def test_a_race_run_again_tells_the_probability_of_its_own_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.linspace(0.0, 0.5, 4000).expand(60, 4000)
    request = PickRequest(0, 60, 8, SamplingParams(), 4, want_prob=True)
    certain = TorchRows(logits, 4000).answer([request])
    monkeypatch.setattr(coupling, "_FINALISTS", 1)
    assert TorchRows(logits, 4000).answer([request]) == certain


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(0.8, 50, 0.95)])
def test_adasd_judges_by_the_distances_of_the_measured_laws(params: SamplingParams) -> None:
    """Its own rule on numbers computed one by one, in many rounds, so that it learns the same."""
    options = AdasdOptions(AdasdVariant.MIDPOINT)
    batched, single = Adasd(options, raw=params.greedy), Adasd(options, raw=params.greedy)
    measured = SamplingParams() if params.greedy else params
    lengths = []
    for seed in range(30):
        logits = random_logits(5, seed=seed)
        near = logits[:4] + random_logits(4, seed=100 + seed) * 0.4
        chosen = PickRequest(0, 4, 9, params, seed, want_law=True)
        if params.greedy:
            told = picks(TorchRows(near, VOCAB_SIZE).answer([chosen])[0])
            drafted, laws = told.token_ids, told.laws
        else:
            drafted, laws = drafted_chunk(near, params, base_len=9, seed=seed)
        evidence = []
        for row, (token_id, law) in enumerate(zip(drafted, laws, strict=True)):
            (seen,) = target_laws(logits[row : row + 1], measured)
            (judged,) = target_laws(logits[row : row + 1], params)
            distance = divergence.js_distance([seen.get(each, 0.0) for each in law.token_ids], law)
            draft_prob = distribution.probabilities(law)[token_id]
            evidence.append(Evidence(draft_prob, judged.get(token_id, 0.0), distance, token_id in seen))
        request = JudgeRequest(0, 9, drafted, laws, params, seed, adasd=batched)
        outcome = judgement(TorchRows(logits, VOCAB_SIZE).answer([request])[0])
        assert outcome.accepted_len == single.accepted_len(evidence, seed=seed, base_len=9)
        assert outcome.signals == NO_SIGNALS
        lengths.append(outcome.accepted_len)
    assert batched.threshold == pytest.approx(single.threshold, abs=1e-4)
    assert len(set(lengths)) > 2


def test_the_same_request_twice_gets_two_equal_answers() -> None:
    rows = TorchRows(random_logits(2), VOCAB_SIZE)
    request = PickRequest(0, 2, 5, SamplingParams(), 1)
    one, other = rows.answer([request, request])
    assert one == other


def test_no_requests_no_answers() -> None:
    assert TorchRows(random_logits(2), VOCAB_SIZE).answer([]) == []


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(top_k=5)])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_model_that_computes_no_numbers_is_an_error_and_not_a_token(params: SamplingParams, broken: float) -> None:
    logits = random_logits(3)
    logits[1, 17] = broken
    rows = TorchRows(logits, VOCAB_SIZE)
    law = distribution.one_hot(17)
    requests: list[RowRequest] = [
        PickRequest(0, 3, 0, params, 1),
        DrawRequest(1, 0, 0, params, 1),
        JudgeRequest(1, 4, (17,), (law,), params, 1),
        JudgeRequest(1, 4, (), (), params, 1),
    ]
    for request in requests:
        with pytest.raises(FloatingPointError, match="not finite"):
            rows.answer([request])


def test_a_draft_that_shares_the_numbers_guesses_the_target_s_picks() -> None:
    """200 positions at temperature 1: a nearly equal law matches nearly always, another seed hardly ever."""
    logits = random_logits(200)
    near = logits + random_logits(200, seed=6) * 0.01

    def picked(some: Tensor, seed: int) -> tuple[int, ...]:
        return picks(TorchRows(some, VOCAB_SIZE).answer([PickRequest(0, 200, 10, SamplingParams(), seed)])[0]).token_ids

    target = picked(logits, 1)
    assert sum(itertools.starmap(int.__eq__, zip(target, picked(near, 1), strict=True))) > 180
    assert sum(itertools.starmap(int.__eq__, zip(target, picked(logits, 2), strict=True))) < 60
