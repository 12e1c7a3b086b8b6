"""Transformers models through all three services and real connections."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from speculative.generation import GenerationRequest, SpeculationOptions, StopConditions, TokenPrompt
from speculative.sampling.types import AcceptanceRule, SamplingParams
from tests.support.laws import law_of_first_tokens
from tests.support.statistics import assert_follows
from tests.support.tiny_models import EOS_TOKEN_IDS, tiny_model
from tests.support.trio import Answer, Client, trio

PROMPT = (5, 17, 40, 8)
Checkpoint = Callable[..., Path]


def ask(params: SamplingParams, max_tokens: int, chunk: int, seed: int, rule: AcceptanceRule) -> GenerationRequest:
    return GenerationRequest(
        prompt=TokenPrompt(PROMPT),
        sampling=params,
        seed=seed,
        stop=StopConditions(max_tokens),
        speculation=SpeculationOptions("fixed", {"length": chunk, "guard": 0}, None, rule, prompt_lookup=False),
    )


async def answers(client: Client, requests: list[GenerationRequest]) -> list[tuple[int, ...]]:
    """Token ids of all answers, 50 requests at a time; most of them must have come about by speculation."""
    places = asyncio.Semaphore(50)

    async def answer(request: GenerationRequest) -> Answer:
        async with places:
            return await client.answer(request)

    given = await asyncio.gather(*map(answer, requests))
    assert sum(each.finished.statistics.drafted for each in given) > len(given)
    assert sum(each.finished.statistics.accepted for each in given) > len(given) / 4
    assert sum(each.finished.statistics.recovered for each in given) > len(given) / 4
    return [tuple(each.token_ids) for each in given]


@pytest.mark.parametrize(
    "rule", [pytest.param(AcceptanceRule.COUPLED, marks=pytest.mark.slow), AcceptanceRule.REJECTION]
)
async def test_the_first_two_tokens_follow_the_targets_law(rule: AcceptanceRule, tiny_checkpoint: Checkpoint) -> None:
    """300 seeds; a false alarm once in a million."""
    params = SamplingParams(temperature=0.9, top_k=3)
    async with trio(str(tiny_checkpoint("llama")), str(tiny_checkpoint("llama", "partial"))) as client:
        drawn = await answers(client, [ask(params, 3, 2, seed, rule) for seed in range(300)])
    law = law_of_first_tokens(tiny_model("llama"), PROMPT, params, 2, EOS_TOKEN_IDS)
    assert_follows([tokens[:2] for tokens in drawn], law)


async def test_greedy_answers_are_the_targets_own(tiny_checkpoint: Checkpoint) -> None:
    """A sliding window, and every chunk length."""
    greedy = SamplingParams(temperature=0.0)
    async with trio(str(tiny_checkpoint("gemma3")), str(tiny_checkpoint("gemma3", "partial"))) as client:
        requests = [ask(greedy, 60, chunk, 0, AcceptanceRule.COUPLED) for chunk in range(1, 9)]
        given = await answers(client, requests)
    expected = tiny_model("gemma3").generate(  # type: ignore[operator]
        torch.tensor([PROMPT]), attention_mask=torch.ones(1, len(PROMPT)), do_sample=False, max_new_tokens=60
    )
    tokens = [token for token in expected[0, len(PROMPT) :].tolist() if token not in EOS_TOKEN_IDS]
    assert given == [tuple(tokens)] * 8


async def test_seeded_answers_are_the_same_after_a_restart(tiny_checkpoint: Checkpoint) -> None:
    paths = str(tiny_checkpoint("llama")), str(tiny_checkpoint("llama", "partial"))
    requests = [ask(SamplingParams(), 40, 4, seed, AcceptanceRule.COUPLED) for seed in range(4)]
    given = []
    for _ in range(2):
        async with trio(*paths) as client:
            given.append(await answers(client, requests))
    assert given[0] == given[1]
