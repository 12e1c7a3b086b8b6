"""Looked-up tokens, alone or with the model behind them, change when the target's output comes, never what it is.

A statistical check has 400 seeds and a false alarm once in a million.
"""

import dataclasses

import pytest

from speculative.sampling.types import AcceptanceRule, SamplingParams
from tests.support.laws import law_of_first_tokens
from tests.support.pairs import GREEDY, Answered, Ask, Pair, pair
from tests.support.statistics import assert_follows
from tests.support.tiny_models import EOS_TOKEN_IDS, DraftKind, tiny_draft, tiny_model
from tests.support.tiny_runners import tiny_runner

REPEATING = (5, 17, 40, 8, 5, 17)
"""Its end is its begin, so that the very first chunk has something to look up."""
PROMPTS = (REPEATING, (9, 9, 9))


def kinds_of_draft(running: Pair) -> dict[str, Pair]:
    return {
        "lookup in front of the model": running,
        "model behind every lookup": dataclasses.replace(running, lookup_alone_tokens=100),
        "no model": dataclasses.replace(running, without_model=True),
    }


def looked_up(answers: list[Answered]) -> int:
    return sum(answered.finished.statistics.looked_up for answered in answers)


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("same", SamplingParams()),
        ("random", SamplingParams()),
        ("partial", GREEDY),
        ("partial", SamplingParams(temperature=0.7, top_k=6)),
    ],
)
async def test_output_is_that_without_a_draft(kind: DraftKind, params: SamplingParams) -> None:
    asks = [Ask(prompt, 20, params, seed=seed, lookup=True) for prompt in PROMPTS for seed in range(2)]
    chunks = [dataclasses.replace(ask, policy_parameters={"length": length}) for ask in asks for length in (2, 8)]
    async with pair(tiny_runner(tiny_model("llama")), tiny_runner(tiny_draft("llama", kind))) as running:
        plain = await running.generate_all([dataclasses.replace(ask, max_draft_tokens=0) for ask in asks])
        expected = [answered.token_ids for answered in plain for _ in range(2)]
        for name, drafting in kinds_of_draft(running).items():
            answers = await drafting.generate_all(chunks)
            assert [answered.token_ids for answered in answers] == expected, name
            assert looked_up(answers) > 0, name


@pytest.mark.parametrize(
    "name",
    [
        "lookup in front of the model",
        pytest.param("model behind every lookup", marks=pytest.mark.slow),
        pytest.param("no model", marks=pytest.mark.slow),
    ],
)
async def test_the_first_two_tokens_follow_the_targets_law_under_the_rejection_rule(name: str) -> None:
    params = SamplingParams(temperature=0.9, top_k=5, top_p=0.95)
    asks = [
        Ask(
            REPEATING,
            3 if name == "lookup in front of the model" else 7,
            params,
            seed=seed,
            policy_parameters={"length": 6},
            acceptance=AcceptanceRule.REJECTION,
            lookup=True,
        )
        for seed in range(400)
    ]
    async with pair(tiny_runner(tiny_model("llama")), tiny_runner(tiny_draft("llama", "partial"))) as running:
        answers = await kinds_of_draft(running)[name].generate_all(asks)
    assert all(answered.finished.statistics.looked_up for answered in answers)
    law = law_of_first_tokens(tiny_model("llama"), REPEATING, params, 2, EOS_TOKEN_IDS)
    assert_follows([answered.token_ids[:2] for answered in answers], law)


async def test_the_verifiers_signals_come_for_looked_up_tokens_too_and_change_nothing() -> None:
    ask = Ask(REPEATING, 24, SamplingParams(), seed=3, lookup=True, round_trace=True)
    async with pair(tiny_runner(tiny_model("llama")), tiny_runner(tiny_draft("llama", "partial"))) as running:
        plain = await running.generate(ask)
        told = await running.generate(dataclasses.replace(ask, round_signals=True))
    assert told.token_ids == plain.token_ids
    assert any(one.looked_up for one in told.rounds)
    for one in told.rounds:
        length = len(one.draft_token_ids)
        assert len(one.signals.kl_nats) == len(one.signals.js_distance) == len(one.draft_probs) == length
        assert one.draft_probs[: one.looked_up] == (1.0,) * one.looked_up
        assert one.draft_entropies_nats[: one.looked_up] == (0.0,) * one.looked_up
