"""`outrider demo`: one prompt with the demo models, with and without speculation, and whether the answers are equal."""

from contextlib import aclosing
from dataclasses import replace

from rich.console import Console

from controller.cli.answers import AnswerView, Completed, Rates, Silent, TextView, collect
from controller.cli.connection import Where, connected
from controller.clients import GenerationClient
from speculative.generation import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    SpeculationOptions,
    StopConditions,
)
from speculative.sampling.types import SamplingParams

PROMPT = "Write a short story about a horse that runs ahead of its carriage."
_SEED = 0
_OFF = "off"  # the policy of an answer without speculation
_MIN_DRAFTED_SHARE = 0.25
"""Of the delivered tokens; below it the two runs are hardly different."""


async def compare(where: Where, prompt: str, max_tokens: int, out: Console, notes: Console) -> bool:
    """Answers twice, greedily, and says whether the answers are equal token for token; returns that."""
    request = GenerationRequest(
        ChatPrompt((ChatMessage("user", prompt),)),
        SamplingParams(temperature=0.0),
        _SEED,
        StopConditions(max_tokens),
    )
    async with connected(where, notes) as client:
        # Both timed runs then find the models warm and the prompt in the prefix cache.
        await _answer(client, replace(request, stop=StopConditions(1)), Silent())
        ahead = await _answer(client, request, TextView(out, notes))
        alone = await _answer(client, replace(request, speculation=SpeculationOptions(max_draft_tokens=0)), Silent())
    return _verdict(ahead, alone, notes)


async def _answer(client: GenerationClient, request: GenerationRequest, view: AnswerView) -> Completed:
    async with aclosing(client.generate(request, None)) as events:
        return await collect(events, view)


def _verdict(ahead: Completed, alone: Completed, notes: Console) -> bool:
    equal = (ahead.token_ids, ahead.text) == (alone.token_ids, alone.text)
    with_draft, without = (Rates.of(answer.finished).tokens_per_s or 0.0 for answer in (ahead, alone))
    outputs = "[green]equal, token for token[/]" if equal else "[bold red]NOT equal[/]"
    hardly = _hardly_drafted(ahead)
    # Of two runs that did almost the same, the ratio would be noise.
    ratio = "" if hardly or not without else f" ({with_draft / without:.2f}x)"
    notes.print(
        f"speculation on: {with_draft:.1f} tokens/s{ratio} · off: {without:.1f} tokens/s · outputs: {outputs}",
        highlight=False,
        soft_wrap=True,
    )
    if hardly:
        notes.print(hardly, style="yellow", highlight=False, soft_wrap=True)
    if not equal:
        notes.print(f"with speculation off the answer is:\n{alone.text}", markup=False, highlight=False)
    return equal


def _hardly_drafted(ahead: Completed) -> str:
    """What to say instead of a ratio when next to nothing was drafted; empty if enough was."""
    if ahead.started.policy == _OFF:
        return "there was no speculation; both ran at the target's own speed"
    if ahead.finished.statistics.drafted < _MIN_DRAFTED_SHARE * ahead.finished.usage.completion_tokens:
        return (
            "speculation did not pay with this draft and switched itself off; both ran at about the target's own speed"
        )
    return ""
