"""Coupled output is a function of target, prompt, parameters and seed alone."""

import dataclasses

import pytest

from controller.policies.registry import policy_names
from speculative.sampling.types import SamplingParams
from tests.support.laws import law_of_first_tokens
from tests.support.pairs import Ask, pair
from tests.support.statistics import assert_follows
from tests.support.tiny_models import DRAFT_KINDS, EOS_TOKEN_IDS, DraftKind, tiny_draft, tiny_model
from tests.support.tiny_runners import tiny_runner

PROMPT = (5, 17, 40, 8)
PARAMS = {
    "plain": SamplingParams(),
    "warped": SamplingParams(temperature=0.8, top_k=12, top_p=0.9, min_p=0.02),
    "cold": SamplingParams(temperature=1e-6),
    "hot": SamplingParams(temperature=1e6),
}


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("kind", DRAFT_KINDS)
async def test_output_does_not_depend_on_draft_chunk_or_policy(kind: DraftKind, name: str) -> None:
    target, draft = tiny_model("qwen2"), tiny_draft("qwen2", kind)
    plain = [Ask(PROMPT, 14, PARAMS[name], seed=seed, max_draft_tokens=0) for seed in range(2)]
    speculative = [
        Ask(PROMPT, 14, PARAMS[name], seed=seed, policy_parameters={"length": chunk})
        for chunk in range(1, 9)
        for seed in range(2)
    ]
    async with pair(tiny_runner(target), tiny_runner(draft)) as running:
        expected = [answered.token_ids for answered in await running.generate_all(plain)]
        answers = await running.generate_all(speculative)
    assert [answered.token_ids for answered in answers] == expected * 8
    assert len(set(expected)) == (1 if name == "cold" else 2)
    if kind == "same":
        assert all(answered.finished.statistics.recovered == 0 for answered in answers)


@pytest.mark.parametrize("policy", policy_names())
async def test_output_does_not_depend_on_the_policy(policy: str) -> None:
    target, draft = tiny_model("llama"), tiny_draft("llama", "partial")
    plain = [Ask(PROMPT, 30, seed=seed, sampling=SamplingParams(), max_draft_tokens=0) for seed in range(3)]
    asks = [Ask(PROMPT, 30, seed=seed, sampling=SamplingParams(), policy=policy) for seed in range(3)]
    with_signals = [dataclasses.replace(ask, round_signals=True) for ask in asks]
    async with pair(tiny_runner(target), tiny_runner(draft)) as running:
        expected = await running.generate_all(plain)
        answers = await running.generate_all(asks)
        told = await running.generate_all(with_signals)
    assert [answered.token_ids for answered in answers] == [answered.token_ids for answered in expected]
    assert [answered.token_ids for answered in told] == [answered.token_ids for answered in expected]


async def test_the_first_two_tokens_follow_the_targets_law() -> None:
    """400 seeds; false alarms once in a million."""
    target, draft = tiny_model("llama"), tiny_draft("llama", "partial")
    params = SamplingParams(temperature=0.7, top_k=4)
    asks = [Ask(PROMPT, 2, params, seed=seed, policy_parameters={"length": 1}) for seed in range(400)]
    async with pair(tiny_runner(target), tiny_runner(draft)) as running:
        answers = await running.generate_all(asks)
    law = law_of_first_tokens(target, PROMPT, params, 2, EOS_TOKEN_IDS)
    assert_follows([answered.token_ids for answered in answers], law)
