"""Whole answers: transformers' own `generate`, and the three services with speculation off and on.

All read the same weights, use the same number of threads and answer the same prompts greedily, one at a time. They take
turns within one run, each prompt in a rotated order, so that a machine that slows down slows all of them. Prompts are
chats rendered by the model's own template; times are of whole answers, prompt included.
"""

import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
import uvloop
from rich.progress import track
from transformers import AutoModelForCausalLM

from benchmarks.report import Figure, Goal, Report
from benchmarks.trio import Flags, trio
from controller.clients import GenerationClient
from speculative.engine.demo_model import DEMO, demo_directory
from speculative.generation import (
    ChatMessage,
    ChatPrompt,
    Delta,
    Finished,
    GenerationRequest,
    SpeculationOptions,
    Statistics,
    StopConditions,
    TokenPrompt,
)
from speculative.sampling.types import SamplingParams

PROMPTS = Path(__file__).with_name("prompts.txt")
PLAIN = "transformers generate"
OFF = "outrider, speculation off"
POLICIES: Mapping[str, SpeculationOptions] = {
    OFF: SpeculationOptions("off"),
    "outrider, fixed 4": SpeculationOptions("fixed", {"length": 4, "guard": 0}),
    "outrider, adasd": SpeculationOptions("adasd", {"guard": 0}),
    "outrider, default policy": SpeculationOptions(),
}
"""The default policy is guarded: it drafts less, or not at all, where drafting does not pay. The others are not."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer: its tokens (no end-of-sequence token), the time it took, and how it was made."""

    token_ids: tuple[int, ...]
    seconds: float
    statistics: Statistics = field(default_factory=Statistics)


Answer = Callable[[tuple[int, ...]], Awaitable[Answered]]
"""Answers a prompt of token ids."""


def plain_answer(model: Any, max_tokens: int) -> Answer:  # noqa: ANN401  # transformers does not type it
    """The `generate` of transformers, as its documentation shows it."""
    eos = model.generation_config.eos_token_id
    ends = set(eos if isinstance(eos, list) else [eos])

    async def answer(prompt: tuple[int, ...]) -> Answered:
        ids = torch.tensor([prompt])
        begun_s = time.perf_counter()
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_tokens,
            pad_token_id=min(ends),
        )
        seconds = time.perf_counter() - begun_s
        tokens = tuple(output[0, len(prompt) :].tolist())
        return Answered(tokens[:-1] if tokens[-1] in ends else tokens, seconds)

    return answer


def service_answer(client: GenerationClient, speculation: SpeculationOptions, max_tokens: int) -> Answer:
    """The services, as a client sees them."""

    async def answer(prompt: tuple[int, ...]) -> Answered:
        request = GenerationRequest(
            TokenPrompt(prompt),
            SamplingParams(temperature=0.0),
            stop=StopConditions(max_tokens=max_tokens),
            speculation=speculation,
        )
        tokens: list[int] = []
        made = Statistics()
        begun_s = time.perf_counter()
        async for event in client.generate(request, timeout_s=600):
            if isinstance(event, Delta):
                tokens += event.token_ids
            elif isinstance(event, Finished):
                made = event.statistics
        return Answered(tuple(tokens), time.perf_counter() - begun_s, made)

    return answer


async def measure(
    ways: Mapping[str, Answer], prompts: Sequence[tuple[int, ...]], repeats: int
) -> dict[str, list[list[Answered]]]:
    """By way: for each repeat the answers to all prompts. The first answer of each way is made once for nothing."""
    for answer in ways.values():
        await answer(prompts[0])
    names = list(ways)
    answered: dict[str, list[list[Answered]]] = {name: [[] for _ in range(repeats)] for name in names}
    turns = [(repeat, index) for repeat in range(repeats) for index in range(len(prompts))]
    for repeat, index in track(turns, "answering"):
        first = (repeat + index) % len(names)
        for name in names[first:] + names[:first]:
            answered[name][repeat].append(await ways[name](prompts[index]))
    return answered


def tokens_per_s(answers: Sequence[Answered]) -> float:
    """All tokens over all the time: long answers weigh as much as they take."""
    return sum(len(one.token_ids) for one in answers) / sum(one.seconds for one in answers)


def speeds(answered: Mapping[str, Sequence[Sequence[Answered]]]) -> dict[str, float]:
    """Tokens per second of each way: the median over the repeats."""
    return {name: statistics.median(map(tokens_per_s, repeats)) for name, repeats in answered.items()}


def equal_answers(answered: Mapping[str, Sequence[Sequence[Answered]]]) -> dict[str, int]:
    """For each way of the services, how many prompts were answered exactly as by `generate`, in every repeat."""
    plain = [one.token_ids for one in answered[PLAIN][0]]
    return {
        name: sum(
            all(repeat[index].token_ids == expected for repeat in repeats) for index, expected in enumerate(plain)
        )
        for name, repeats in answered.items()
        if name != PLAIN
    }


def report(answered: Mapping[str, Sequence[Sequence[Answered]]], threads: int, model: str, max_tokens: int) -> Report:
    """Medians over the repeats, and whether the answers were the same."""
    speed, equal = speeds(answered), equal_answers(answered)
    prompts = len(answered[PLAIN][0])
    figures = [Figure(name, value, "tokens/s", _note(answered[name][0])) for name, value in speed.items()]
    least = min(equal.values())
    figures.append(Figure("answers equal to generate's", least, f"of {prompts}", "token for token, in every way"))
    goals = [
        Goal("answers equal to generate's", least, "==", prompts),
        Goal("speed with speculation off, relative to generate", speed[OFF] / speed[PLAIN], ">=", 1.0),
    ]
    details = {
        "model": model,
        "prompts": prompts,
        "max_tokens": max_tokens,
        "repeats": len(answered[PLAIN]),
        "tokens_per_s": {name: list(map(tokens_per_s, repeats)) for name, repeats in answered.items()},
        "equal_answers": equal,
        "statistics": {name: _counts(repeats[0]) for name, repeats in answered.items() if name != PLAIN},
    }
    return Report("end_to_end", threads, figures, goals, details)


def _counts(answers: Sequence[Answered]) -> dict[str, int]:
    names = ("rounds", "drafted", "accepted", "recovered", "bonus")
    return {name: sum(getattr(one.statistics, name) for one in answers) for name in names}


def _note(answers: Sequence[Answered]) -> str:
    counts = _counts(answers)
    if not counts["drafted"]:
        return ""
    per_round = (counts["accepted"] + counts["recovered"] + counts["bonus"]) / counts["rounds"]
    return f"{per_round:.2f} tokens a round, {counts['accepted'] / counts['drafted']:.0%} of drafted tokens accepted"


async def run(model: str, draft: str, threads: int, max_tokens: int, repeats: int, count: int) -> Report:
    """Measures all ways in one run."""
    torch.set_num_threads(threads)
    directory = str(demo_directory("target")) if model == DEMO else model
    plain = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    flags = Flags(
        draft=["--model", draft, "--threads", str(threads), "--dtype", "float32"],
        verifier=["--model", model, "--threads", str(threads), "--dtype", "float32"],
    )
    async with trio(flags) as client:
        texts = PROMPTS.read_text("utf-8").splitlines()[:count]
        chats = [ChatPrompt((ChatMessage("user", text),)) for text in texts]
        prompts = [await client.tokenize(chat, timeout_s=60) for chat in chats]
        ways = {PLAIN: plain_answer(plain, max_tokens)}
        ways |= {name: service_answer(client, options, max_tokens) for name, options in POLICIES.items()}
        answered = await measure(ways, prompts, repeats)
    return report(answered, threads, model, max_tokens)


def main(
    model: Annotated[str, typer.Option(help="Target: a directory or 'demo'.")] = DEMO,
    draft: Annotated[str, typer.Option(help="Draft: a directory or 'demo'.")] = DEMO,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of each model.")] = 2,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="How often each prompt is answered each way.")] = 3,
    prompts: Annotated[int, typer.Option(min=1, help="How many of the prompts to take.")] = 12,
) -> None:
    """Measures tokens per second of whole answers."""
    uvloop.run(run(model, draft, threads, max_tokens, repeats, prompts)).publish()


if __name__ == "__main__":
    typer.run(main)
