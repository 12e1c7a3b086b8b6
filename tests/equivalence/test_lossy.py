"""AdaSD's acceptance over whole answers: lossy, but never a token that the target excludes, and it says what it is."""

import pytest

from speculative.generation import TokenOrigin
from speculative.sampling.types import AcceptanceRule, AdasdLabels, AdasdOptions, AdasdVariant, SamplingParams
from tests.support.laws import next_token_law
from tests.support.pairs import GREEDY, Ask, pair
from tests.support.tiny_models import DraftKind, tiny_draft, tiny_model
from tests.support.tiny_runners import tiny_runner

PROMPT = (5, 17, 40, 8)
OPTIONS = [AdasdOptions(variant, labels) for variant in AdasdVariant for labels in AdasdLabels]


def ask(options: AdasdOptions, params: SamplingParams, seed: int = 0, max_tokens: int = 60) -> Ask:
    return Ask(
        PROMPT,
        max_tokens,
        params,
        seed,
        policy_parameters={"length": 6},
        acceptance=AcceptanceRule.ADASD,
        adasd=options,
        round_signals=True,
    )


@pytest.mark.parametrize("kind", ["random", pytest.param("partial", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "options",
    [pytest.param(each, marks=() if each.labels is AdasdLabels.EXACT else pytest.mark.slow) for each in OPTIONS],
    ids=lambda options: f"{options.variant.value}-{options.labels.value}",
)
async def test_no_token_comes_out_that_the_target_excludes(options: AdasdOptions, kind: DraftKind) -> None:
    target, params = tiny_model("qwen2"), SamplingParams(temperature=1.2, top_k=5)
    async with pair(tiny_runner(target), tiny_runner(tiny_draft("qwen2", kind))) as running:
        answers = await running.generate_all([ask(options, params, seed) for seed in range(2)])
    for answered in answers:
        for index, token_id in enumerate(answered.token_ids):
            assert token_id in next_token_law(target, (*PROMPT, *answered.token_ids[:index]), params)
        statistics = answered.finished.statistics
        assert statistics.drafted > 20
        assert (statistics.acceptance, statistics.lossy) == (AcceptanceRule.ADASD, True)


async def test_a_draft_that_is_the_target_is_accepted_nearly_whole() -> None:
    target = tiny_model("qwen2")
    async with pair(tiny_runner(target), tiny_runner(target)) as running:
        answered = await running.generate(ask(OPTIONS[0], SamplingParams(top_k=20)))
    assert answered.finished.statistics.recovered <= 1


async def test_at_temperature_zero_it_departs_from_greedy_only_at_accepted_tokens() -> None:
    target, draft = tiny_model("qwen2"), tiny_draft("qwen2", "partial")
    asks = [ask(options, GREEDY) for options in OPTIONS]
    async with pair(tiny_runner(target), tiny_runner(draft)) as running:
        answers = await running.generate_all(asks)
    departures = 0
    for answered in answers:
        origins = [origin for trace in answered.rounds for origin in _origins(trace.accepted_len)]
        for index, (token_id, origin) in enumerate(zip(answered.token_ids, origins, strict=False)):
            greedy = token_id in next_token_law(target, (*PROMPT, *answered.token_ids[:index]), GREEDY)
            assert greedy or origin is TokenOrigin.ACCEPTED
            departures += not greedy
    assert departures > 0


def _origins(accepted_len: int) -> list[TokenOrigin]:
    return [TokenOrigin.ACCEPTED] * accepted_len + [TokenOrigin.RECOVERED]
