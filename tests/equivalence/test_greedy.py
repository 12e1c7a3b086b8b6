"""Greedy output is transformers' own `generate` on the target, token for token, whatever the draft and the chunk."""

import random
from collections.abc import Sequence

import pytest
import torch
from transformers import PreTrainedModel

from speculative.engine.interface import Slice
from speculative.engine.rows import TorchRows
from speculative.engine.runner import TransformersRunner
from tests.support.pairs import Answered, Ask, pair
from tests.support.tiny_models import (
    CONTEXT_LENGTH,
    DRAFT_KINDS,
    EOS_TOKEN_IDS,
    VOCAB_SIZE,
    DraftKind,
    tiny_draft,
    tiny_model,
)
from tests.support.tiny_runners import SERVED, tiny_runner

TIE = 1e-4
"""Two scores this close are a tie: padding and batching may change which one wins."""


def reference(model: PreTrainedModel, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """What transformers generates, without the end-of-sequence token."""
    room = min(max_tokens, CONTEXT_LENGTH - len(prompt))
    output = model.generate(  # type: ignore[operator]
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), do_sample=False, max_new_tokens=room
    )
    generated: list[int] = output[0, len(prompt) :].tolist()
    return generated[:-1] if generated and generated[-1] in EOS_TOKEN_IDS else generated


def assert_same(model: PreTrainedModel, prompt: Sequence[int], expected: Sequence[int], actual: Sequence[int]) -> None:
    """Equal, or different first at a tie."""
    if list(expected) == list(actual):
        return
    at = next((i for i, (e, a) in enumerate(zip(expected, actual, strict=False)) if e != a), None)
    assert at is not None, f"one ends before the other: {expected} {actual}"
    with torch.inference_mode():
        scores = model(torch.tensor([[*prompt, *expected[:at]]])).logits[0, -1]
    assert abs(float(scores[expected[at]] - scores[actual[at]])) < TIE, f"token {at}: {expected} {actual}"


def prompts(seed: int, lengths: Sequence[int]) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(3, VOCAB_SIZE) for _ in range(length)) for length in lengths]


@pytest.mark.parametrize("kind", DRAFT_KINDS)
@pytest.mark.parametrize("architecture", SERVED)
async def test_output_is_the_targets_own_for_every_chunk_length(architecture: str, kind: DraftKind) -> None:
    target = tiny_model(architecture)
    asked = prompts(1, [1, 37, CONTEXT_LENGTH - 12, CONTEXT_LENGTH - 1])
    expected = [reference(target, prompt, 12) for prompt in asked]
    assert len(set(map(tuple, expected))) == len(expected), "the prompts do not tell outputs apart"
    asks = [Ask(prompt, 12, policy_parameters={"length": chunk}) for prompt in asked for chunk in range(1, 9)] + [
        Ask(prompt, 12, max_draft_tokens=0) for prompt in asked
    ]
    async with pair(tiny_runner(target), tiny_runner(tiny_draft(architecture, kind))) as running:
        answers = await running.generate_all(asks)
    wanted = [tokens for tokens in expected for _ in range(8)] + expected
    for ask, tokens, answered in zip(asks, wanted, answers, strict=True):
        assert_same(target, ask.prompt, tokens, answered.token_ids)
    if kind == "same":
        for ask, answered in zip(asks, answers, strict=True):
            assert_all_accepted(ask, answered)


def assert_all_accepted(ask: Ask, answered: Answered) -> None:
    """A draft that is the target is never rejected (but for ties, which this model does not have)."""
    statistics = answered.finished.statistics
    assert statistics.recovered == 0, f"{ask} {answered}"


async def test_one_at_a_time_equals_many_at_once() -> None:
    target, draft = tiny_model("llama"), tiny_draft("llama", "partial")
    asks = [Ask(prompt, 20, policy_parameters={"length": 4}) for prompt in prompts(2, range(1, 60, 7))]
    async with pair(tiny_runner(target), tiny_runner(draft)) as running:
        together = await running.generate_all(asks)
        alone = [await running.generate(ask) for ask in asks]
    for ask, one, other in zip(asks, alone, together, strict=True):
        assert_same(target, ask.prompt, one.token_ids, other.token_ids)


async def test_eviction_and_recomputing_change_nothing() -> None:
    target, draft = tiny_model("qwen3"), tiny_draft("qwen3", "partial")
    asks = [Ask(prompt, 30, policy_parameters={"length": 3}) for prompt in prompts(3, [40] * 6)]
    async with pair(tiny_runner(target, cache_tokens=160), tiny_runner(draft, cache_tokens=160)) as running:
        answers = await running.generate_all(asks)
        assert running.target.stats().evictions > 0
    for ask, answered in zip(asks, answers, strict=True):
        assert_same(target, ask.prompt, reference(target, ask.prompt, 30), answered.token_ids)


async def test_a_long_prompt_in_pieces_changes_nothing() -> None:
    target = tiny_model("gemma3")
    asks = [Ask(prompt, 10, policy_parameters={"length": 4}) for prompt in prompts(4, [80, 5, 61])]
    async with pair(
        tiny_runner(target), tiny_runner(tiny_draft("gemma3", "partial")), max_batch_tokens=16, max_prompt_tokens=7
    ) as running:
        answers = await running.generate_all(asks)
    for ask, answered in zip(asks, answers, strict=True):
        assert_same(target, ask.prompt, reference(target, ask.prompt, 10), answered.token_ids)


async def test_acceptance_stays_whole_for_a_same_draft_after_forced_rejections() -> None:
    """A draft whose cache is rolled back too far or not far enough would agree ever less, and nothing else would show.

    The draft here is the target itself behind a runner that changes every tenth pick.
    """
    target = tiny_model("llama")
    runner = CloudyRunner(tiny_runner(target))
    asks = [Ask(prompt, 80, policy_parameters={"length": 4}) for prompt in prompts(5, range(10, 16))]
    async with pair(tiny_runner(target), runner) as running:
        answers = await running.generate_all(asks)
    recovered = sum(answered.finished.statistics.recovered for answered in answers)
    delivered = sum(answered.finished.usage.completion_tokens for answered in answers)
    assert delivered > 200
    assert 10 < recovered <= runner.clouded


class CloudyRunner:
    """A runner whose every tenth step favours a wrong token."""

    def __init__(self, inner: TransformersRunner) -> None:
        self._inner = inner
        self.info, self.blocks = inner.info, inner.blocks
        self.steps = 0
        self.clouded = 0

    def forward(self, slices: Sequence[Slice]) -> TorchRows:
        logits = self._inner.logits(slices)
        self.steps += 1
        if self.steps % 10 == 0 and logits.shape[0]:
            self.clouded += logits.shape[0]
            logits = logits.roll(1, dims=-1)
        return TorchRows(logits, self.info.vocab_size)
