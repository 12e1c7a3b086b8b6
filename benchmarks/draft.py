"""What the shipped draft is worth: how many tokens stand, what a step costs, and what that makes of whole answers.

Everything is measured on the held-out prompts of `training/heldout.jsonl`. The rounds are played on the target's own
answers (training/rounds.py), so they need no clock; steps are timed in the engine the services run; whole answers are
timed as in end_to_end.py, in turns within one run.
"""

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
import uvloop
from rich.console import Console
from transformers import AutoModelForCausalLM

from benchmarks import end_to_end
from benchmarks.end_to_end import OFF, PLAIN, Answer, Answered, plain_answer, service_answer, speeds
from benchmarks.report import Figure, Goal, Report
from benchmarks.trio import Flags, trio
from speculative.engine.demo_model import DEMO, Role, demo_directory
from speculative.engine.interface import PickRequest, Runner, Slice
from speculative.engine.loading import LoadSettings, load
from speculative.generation import ChatMessage, ChatPrompt, SpeculationOptions
from speculative.sampling.types import SamplingParams
from speculative.settings import cache_directory
from training.measure import CHUNKS, answer_held_out
from training.measure import measure as play_rounds

HELDOUT = Path(__file__).parents[1] / "training" / "heldout.jsonl"
ASSISTED = "transformers assisted"
FIXED = "outrider, fixed 4"
DEFAULT = "outrider, default policy"
CONTEXT = 150
CHECKED = range(1, 10)
THREADS = (1, 2)
WARM_UP = 5


def step_ms(runner: Runner, num_tokens: int, count: int) -> list[float]:
    """Times of `count` steps of `num_tokens` tokens behind `CONTEXT` others, greedy picks of all rows included."""
    prefix = [7 + 13 * index % 997 for index in range(CONTEXT)]
    runner.blocks.attach("timed", prefix)
    if not runner.blocks.reserve("timed", 0, CONTEXT + num_tokens):
        raise RuntimeError("no room for the timed sequence")
    runner.forward([Slice("timed", prefix, 0, 1, ())])
    piece = Slice("timed", prefix[:num_tokens], CONTEXT, num_tokens, prefix)
    pick = PickRequest(
        0, num_tokens, CONTEXT + 1, SamplingParams(temperature=0.0), seed=0, want_entropy=num_tokens == 1
    )
    times = []
    for _ in range(WARM_UP + count):
        begun_s = time.perf_counter()
        runner.forward([piece]).answer([pick])
        times.append((time.perf_counter() - begun_s) * 1e3)
    runner.blocks.release("timed")
    return times[WARM_UP:]


def costs(draft: str, target: str, count: int) -> dict[str, float]:
    """Median milliseconds of a draft step and of verifying 1 to 9 positions, on one thread and on two."""
    measured = {}
    for threads in THREADS:
        settings = LoadSettings(threads=threads, cache_tokens=1024)
        drafting = load(draft, settings, "draft").runner
        measured[f"draft step, {_threads(threads)}"] = statistics.median(step_ms(drafting, 1, 4 * count))
        verifying = load(target, settings, "target").runner
        for positions in CHECKED:
            name = f"verify {positions} positions, {_threads(threads)}"
            measured[name] = statistics.median(step_ms(verifying, positions, count))
    return measured


def assisted_answer(model: Any, draft: Any, max_tokens: int) -> Answer:  # noqa: ANN401  # transformers does not type it
    """Assisted generation of transformers with the same draft, four tokens a round."""
    draft.generation_config.num_assistant_tokens = 4
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0

    async def answer(prompt: tuple[int, ...]) -> Answered:
        ids = torch.tensor([prompt])
        begun_s = time.perf_counter()
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            assistant_model=draft,
            do_sample=False,
            max_new_tokens=max_tokens,
            pad_token_id=model.generation_config.eos_token_id,
        )
        seconds = time.perf_counter() - begun_s
        tokens = tuple(output[0, len(prompt) :].tolist())
        ended = tokens[-1] == model.generation_config.eos_token_id
        return Answered(tokens[:-1] if ended else tokens, seconds)

    return answer


async def answer_all(
    draft: str, target: str, threads: int, max_tokens: int, repeats: int, count: int
) -> dict[str, list[list[Answered]]]:
    """Whole answers to `count` of the held-out prompts, evenly over the kinds."""
    torch.set_num_threads(threads)
    directories = (_directory(target, "target"), _directory(draft, "draft"))
    plain, assistant = (
        AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval() for directory in directories
    )
    flags = Flags(
        draft=["--model", draft, "--threads", str(threads)],
        verifier=["--model", target, "--threads", str(threads)],
    )
    entries = [json.loads(line) for line in HELDOUT.read_text("utf-8").splitlines()]
    chosen = entries[:: max(1, len(entries) // count)]
    async with trio(flags) as client:
        chats = [
            ChatPrompt(tuple(ChatMessage(message["role"], message["content"]) for message in entry["messages"]))
            for entry in chosen
        ]
        prompts = [await client.tokenize(chat, timeout_s=60) for chat in chats]
        ways = {
            PLAIN: plain_answer(plain, max_tokens),
            ASSISTED: assisted_answer(plain, assistant, max_tokens),
            OFF: service_answer(client, SpeculationOptions("off"), max_tokens),
            FIXED: service_answer(client, SpeculationOptions("fixed", {"length": 4}), max_tokens),
            DEFAULT: service_answer(client, SpeculationOptions(), max_tokens),
        }
        return await end_to_end.measure(ways, prompts, repeats)


def report(
    rounds: Mapping[str, Mapping[str, Any]],
    times: Mapping[str, float],
    answered: Mapping[str, Sequence[Sequence[Answered]]],
    threads: int,
) -> Report:
    """All figures, and the goals they were to reach."""
    speed = speeds(answered)
    best = max(speed[FIXED], speed[DEFAULT])
    greedy = rounds["greedy"]
    figures = []
    for rule in ("greedy", "rejection", "coupled"):
        note = "temperature 0" if rule == "greedy" else "temperature 1"
        figures.append(Figure(f"{rule}: acceptance", rounds[rule]["acceptance"], "", note))
        for chunk in CHUNKS:
            for where in ("alone", "with_lookup"):
                value = rounds[rule][f"tokens_a_round_{where}_chunk_{chunk}"]
                figures.append(
                    Figure(f"{rule}: {where.replace('_', ' ')}, chunk {chunk}", value, "tokens a round", note)
                )
    figures += [Figure(name, value, "ms", f"context {CONTEXT}") for name, value in times.items()]
    figures += [Figure(name, value, "tokens/s") for name, value in speed.items()]
    goals = [
        Goal("greedy acceptance, alone", greedy["acceptance"], ">=", 0.50),
        Goal("tokens a round, chunk 4, behind lookup", greedy["tokens_a_round_with_lookup_chunk_4"], ">=", 2.2),
        Goal("draft step on one thread (ms)", times[f"draft step, {_threads(1)}"], "<=", 2.5),
        Goal("speed relative to speculation off", best / speed[OFF], ">=", 1.25),
    ]
    details = {"rounds": rounds, "tokens_per_s": speed, "equal_answers": end_to_end.equal_answers(answered)}
    return Report("draft", threads, figures, goals, details)


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _directory(name: str, role: Role) -> Path:
    return demo_directory(role) if name == DEMO else Path(name)


def main(
    draft: Annotated[str, typer.Option(help="Draft: a directory or 'demo'.")] = DEMO,
    target: Annotated[str, typer.Option(help="Target: a directory or 'demo'.")] = DEMO,
    heldout: Annotated[Path | None, typer.Option(help="Where the target's answers are kept.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of each model, for whole answers.")] = 2,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 72,
    repeats: Annotated[int, typer.Option(min=1, help="How often each prompt is answered each way.")] = 1,
    prompts: Annotated[int, typer.Option(min=1, help="How many of the held-out prompts to answer.")] = 10,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps of each size.")] = 25,
) -> None:
    """Measures the draft on the held-out prompts."""
    say = Console(stderr=True).print
    answers = heldout or cache_directory() / "training" / "heldout"
    target_directory, draft_directory = _directory(target, "target"), _directory(draft, "draft")
    answer_held_out(target_directory, answers)
    rounds = play_rounds(target_directory, draft_directory, answers, say)
    say("timing steps")
    times = costs(draft, target, steps)
    answered = uvloop.run(answer_all(draft, target, threads, max_tokens, repeats, prompts))
    report(rounds, times, answered, threads).publish()


if __name__ == "__main__":
    typer.run(main)
