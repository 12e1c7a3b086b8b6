"""Rejection sampling has the target's law, whatever the draft.

A check has 400 seeds (4,000 in the slow tests) and a false alarm once in a million. The law is computed with
transformers' processors.
"""

import pytest

from speculative.sampling.types import AcceptanceRule, SamplingParams
from tests.support.laws import law_of_first_tokens
from tests.support.pairs import Answered, Ask, pair
from tests.support.statistics import assert_follows
from tests.support.tiny_models import DRAFT_KINDS, EOS_TOKEN_IDS, DraftKind, tiny_draft, tiny_model
from tests.support.tiny_runners import tiny_runner

PROMPT = (5, 17, 40, 8)
SAMPLES = 400
MANY_SAMPLES = 4000


async def answers_of(kind: DraftKind, params: SamplingParams, tokens: int, chunk: int, samples: int) -> list[Answered]:
    asks = [
        Ask(
            PROMPT,
            tokens,
            params,
            seed=seed,
            policy_parameters={"length": chunk},
            acceptance=AcceptanceRule.REJECTION,
        )
        for seed in range(samples)
    ]
    async with pair(tiny_runner(tiny_model("llama")), tiny_runner(tiny_draft("llama", kind))) as running:
        return await running.generate_all(asks)


async def test_the_first_two_tokens_follow_the_targets_law() -> None:
    await assert_first_two_tokens("partial", SAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAFT_KINDS)
async def test_the_first_two_tokens_follow_the_targets_law_for_every_draft(kind: DraftKind) -> None:
    await assert_first_two_tokens(kind, MANY_SAMPLES)


async def assert_first_two_tokens(kind: DraftKind, samples: int) -> None:
    params = SamplingParams(temperature=0.9, top_k=5, top_p=0.95)
    answers = await answers_of(kind, params, tokens=3, chunk=2, samples=samples)
    law = law_of_first_tokens(tiny_model("llama"), PROMPT, params, 2, EOS_TOKEN_IDS)
    assert_follows([answered.token_ids[:2] for answered in answers], law)


async def test_the_whole_vocabulary_follows_the_targets_law() -> None:
    """The draft's law is cut to its most likely ids; the residual brings back the others."""
    params = SamplingParams(temperature=1.5)
    answers = await answers_of("partial", params, tokens=2, chunk=1, samples=SAMPLES)
    law = law_of_first_tokens(tiny_model("llama"), PROMPT, params, 1, EOS_TOKEN_IDS)
    assert_follows([answered.token_ids[:1] for answered in answers], law)


async def test_greedy_is_greedy_under_the_rejection_rule() -> None:
    params = SamplingParams(temperature=0.0)
    answers = await answers_of("random", params, tokens=10, chunk=3, samples=3)
    law = law_of_first_tokens(tiny_model("llama"), PROMPT, params, 10, EOS_TOKEN_IDS)
    assert {answered.token_ids for answered in answers} == law.keys()


async def test_the_targets_own_draft_is_nearly_always_accepted() -> None:
    params = SamplingParams(top_k=8)
    answers = await answers_of("same", params, tokens=10, chunk=3, samples=20)
    accepted = sum(answered.finished.statistics.accepted for answered in answers)
    recovered = sum(answered.finished.statistics.recovered for answered in answers)
    assert recovered <= 0.02 * accepted  # the draft's law is rounded to half precision
