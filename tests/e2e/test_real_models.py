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
from tests.support.tiny_models import EOS_TOKEN_IDS, VOCAB_SIZE, tiny_model
from tests.support.trio import Client, trio

PROMPT = (5, 17, 40, 8)
Checkpoint = Callable[..., Path]


def ask(params: SamplingParams, max_tokens: int, chunk: int, seed: int, rule: AcceptanceRule) -> GenerationRequest:
    return GenerationRequest(
        prompt=TokenPrompt(PROMPT),
        sampling=params,
        seed=seed,
        stop=StopConditions(max_tokens),
        speculation=SpeculationOptions("fixed", {"length": chunk}, None, rule),
    )


async def answers(client: Client, requests: list[GenerationRequest]) -> list[tuple[int, ...]]:
    """Token ids of all answers, 50 requests at a time."""
    places = asyncio.Semaphore(50)

    async def answer(request: GenerationRequest) -> tuple[int, ...]:
        async with places:
            return tuple((await client.answer(request)).token_ids)

    return list(await asyncio.gather(*map(answer, requests)))


@pytest.mark.parametrize("rule", [AcceptanceRule.COUPLED, AcceptanceRule.REJECTION])
async def test_the_first_two_tokens_follow_the_targets_law(rule: AcceptanceRule, tiny_checkpoint: Checkpoint) -> None:
    """300 seeds; a false alarm once in a million."""
    params = SamplingParams(temperature=0.9, top_k=3)
    async with trio(str(tiny_checkpoint("llama")), str(tiny_checkpoint("llama", "partial"))) as client:
        drawn = await answers(client, [ask(params, 3, 2, seed, rule) for seed in range(300)])
    law = law_of_first_tokens(tiny_model("llama"), PROMPT, params, 2, EOS_TOKEN_IDS)
    assert_follows([tokens[:2] for tokens in drawn], law)


async def test_greedy_answers_are_the_targets_own(tiny_checkpoint: Checkpoint) -> None:
    """A sliding window, a padded vocabulary, and every chunk length."""
    target = tiny_checkpoint("gemma3", padding=16)
    greedy = SamplingParams(temperature=0.0)
    async with trio(str(target), str(tiny_checkpoint("gemma3", "partial"))) as client:
        requests = [ask(greedy, 60, chunk, 0, AcceptanceRule.COUPLED) for chunk in range(1, 9)]
        given = await answers(client, requests)
    expected = tiny_model("gemma3", padding=16).generate(  # type: ignore[operator]
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT)),
        do_sample=False,
        max_new_tokens=60,
        suppress_tokens=list(range(VOCAB_SIZE, VOCAB_SIZE + 16)),  # transformers does not know what is padding
    )
    tokens = [token for token in expected[0, len(PROMPT) :].tolist() if token not in EOS_TOKEN_IDS]
    assert given == [tuple(tokens)] * 8
