"""Signals are numbers about the two models' laws: the ones a plain forward pass of each gives."""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pytest

from speculative.sampling.types import AcceptanceRule, SamplingParams
from tests.support.laws import next_token_law
from tests.support.pairs import GREEDY, Answered, Ask, pair
from tests.support.tiny_models import tiny_draft, tiny_model
from tests.support.tiny_runners import tiny_runner

PROMPT = (5, 17, 40, 8)
PARAMS = {
    "plain": SamplingParams(),
    "greedy": GREEDY,
    "cold": SamplingParams(temperature=0.5),
    "few tokens": SamplingParams(temperature=0.8, top_k=20),
}
FP16 = 2e-3
SATURATED = 5.0
"""Nats from which on it matters that small draft weights are rounded, and that less than 1e-8 is taken for it."""
Law = Mapping[int, float]


class Position(NamedTuple):
    """A drafted token: what was told of it, and the laws there."""

    token_id: int
    entropy: float
    prob: float
    kl: float
    js: float
    target_entropy: float
    target: Law
    draft: Law


def positions(answered: Answered, params: SamplingParams) -> Iterator[Position]:
    """All drafted tokens of an answer, those behind a rejection too. Greedy laws are compared before they are cut."""
    target, draft = tiny_model("llama"), tiny_draft("llama", "partial")
    whole = (*PROMPT, *answered.token_ids)
    compared = SamplingParams() if params.greedy else params
    for trace in answered.rounds:
        signals = trace.signals
        for index, token_id in enumerate(trace.draft_token_ids):
            context = (*whole[: trace.base_len], *trace.draft_token_ids[:index])
            yield Position(
                token_id,
                trace.draft_entropies_nats[index],
                trace.draft_probs[index],
                signals.kl_nats[index],
                signals.js_distance[index],
                signals.target_entropies_nats[index],
                next_token_law(target, context, compared),
                next_token_law(draft, context, compared),
            )


def entropy(law: Law) -> float:
    return -math.fsum(prob * math.log(prob) for prob in law.values())


def kl(target: Law, draft: Law) -> float:
    """Infinite where the draft excludes a token of the target's."""
    if not target.keys() <= draft.keys():
        return math.inf
    return math.fsum(prob * math.log(prob / draft[token_id]) for token_id, prob in target.items())


def js(target: Law, draft: Law) -> float:
    mean = {token_id: (target.get(token_id, 0.0) + draft.get(token_id, 0.0)) / 2 for token_id in target.keys() | draft}
    return math.sqrt(max(0.0, (kl(target, mean) + kl(draft, mean)) / 2 / math.log(2)))


@pytest.mark.parametrize("rule", [AcceptanceRule.COUPLED, AcceptanceRule.REJECTION])
@pytest.mark.parametrize("name", PARAMS)
async def test_signals_are_those_of_plain_forward_passes(name: str, rule: AcceptanceRule) -> None:
    params = PARAMS[name]
    ask = Ask(PROMPT, 20, params, seed=4, policy_parameters={"length": 5}, acceptance=rule, round_signals=True)
    async with pair(tiny_runner(tiny_model("llama")), tiny_runner(tiny_draft("llama", "partial"))) as running:
        answered = await running.generate(ask)
    told = list(positions(answered, params))
    assert len(told) >= 15
    assert max(one.kl for one in told) > 0.01
    for one in told:
        assert one.entropy == pytest.approx(entropy(one.draft), abs=1e-3)
        assert one.target_entropy == pytest.approx(entropy(one.target), abs=1e-3)
        assert one.prob == pytest.approx(one.draft[one.token_id], abs=FP16)
        assert 0 <= one.kl <= kl(one.target, one.draft) + FP16
        assert 0 <= one.js <= js(one.target, one.draft) + FP16
        if len(one.draft) <= 32:  # the whole law was sent
            assert one.js == pytest.approx(js(one.target, one.draft), abs=FP16)
            if one.target.keys() <= one.draft.keys():
                assert one.kl == pytest.approx(kl(one.target, one.draft), abs=FP16)
    if name == "few tokens":
        assert all(len(one.draft) == 20 for one in told)
        assert any(one.target.keys() <= one.draft.keys() for one in told)


async def test_a_bound_is_tight_where_the_tail_is_small() -> None:
    params = SamplingParams(temperature=0.25)
    ask = Ask(PROMPT, 20, params, policy_parameters={"length": 5}, round_signals=True)
    async with pair(tiny_runner(tiny_model("llama")), tiny_runner(tiny_draft("llama", "partial"))) as running:
        answered = await running.generate(ask)
    told = list(positions(answered, params))
    for one in told:
        assert len(one.draft) > 32
        assert one.js == pytest.approx(js(one.target, one.draft), abs=0.01)
        if kl(one.target, one.draft) < SATURATED:
            assert one.kl == pytest.approx(kl(one.target, one.draft), abs=0.01)
        else:
            assert one.kl > SATURATED / 2
    assert sum(one.kl < SATURATED for one in told) > 10


async def test_equal_models_are_at_no_distance() -> None:
    ask = Ask(PROMPT, 20, SamplingParams(), policy_parameters={"length": 5}, round_signals=True)
    async with pair(tiny_runner(tiny_model("llama")), tiny_runner(tiny_model("llama"))) as running:
        answered = await running.generate(ask)
    for trace in answered.rounds:
        assert all(value < 1e-5 for value in trace.signals.kl_nats)
        assert all(value < 2e-3 for value in trace.signals.js_distance)
