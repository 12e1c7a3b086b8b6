"""What sampling costs, next to the forward pass it follows: a verification of 9 positions on the CPU.

For each way of sampling, the time of `TorchRows.answer` on the 9 rows that a forward pass over 9 tokens behind a cached
prompt gave. Forward passes and answers take turns, so that both see the same machine. All figures are medians.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import torch
import typer
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from benchmarks.report import Figure, Goal, Report
from speculative.engine.demo_model import DEMO, demo_directory
from speculative.engine.interface import Draw, DrawRequest, JudgeRequest, PickRequest, RowRequest
from speculative.engine.rows import TorchRows
from speculative.sampling.types import SamplingParams

POSITIONS = 9
PROMPT_TOKENS = 64
GOAL_SHARE = 0.05
"""Of the forward pass."""
FORWARD = "forward pass"

Work = Callable[[], object]


def requests(rows: TorchRows) -> dict[str, list[RowRequest]]:
    """The requests of a verification, by the way of sampling."""
    greedy, neutral = SamplingParams(temperature=0.0), SamplingParams()
    cut = SamplingParams(temperature=0.8, top_k=50, top_p=0.95)
    return {
        "greedy": [PickRequest(0, POSITIONS, PROMPT_TOKENS, greedy, seed=1)],
        "coupled, temperature 1": [PickRequest(0, POSITIONS, PROMPT_TOKENS, neutral, seed=1)],
        "coupled, temperature 0.8, top-k 50, top-p 0.95": [PickRequest(0, POSITIONS, PROMPT_TOKENS, cut, seed=1)],
        "rejection, temperature 1": [judge_request(rows, neutral)],
    }


def judge_request(rows: TorchRows, params: SamplingParams) -> JudgeRequest:
    """A chunk drafted from the very rows it is judged by: accepted whole or nearly, so every row is looked at."""
    drawn = rows.answer(
        [DrawRequest(row, PROMPT_TOKENS + row, PROMPT_TOKENS, params, seed=1) for row in range(POSITIONS - 1)]
    )
    draws = [outcome for outcome in drawn if isinstance(outcome, Draw)]
    token_ids, laws = tuple(each.token_id for each in draws), tuple(each.law for each in draws)
    return JudgeRequest(0, PROMPT_TOKENS, token_ids, laws, params, seed=1)


def forward_of(model: PreTrainedModel) -> Callable[[], Tensor]:
    """A forward pass over POSITIONS tokens behind PROMPT_TOKENS cached ones; gives logits [POSITIONS, V]."""
    generator = torch.Generator().manual_seed(1)
    token_ids = torch.randint(model.config.vocab_size, (1, PROMPT_TOKENS + POSITIONS), generator=generator)
    cache = DynamicCache(config=model.config)
    model(token_ids[:, :PROMPT_TOKENS], cache=cache)

    def forward() -> Tensor:
        logits: Tensor = model(token_ids[:, PROMPT_TOKENS:], cache=cache).logits[0]
        cache.crop(-POSITIONS)
        return logits

    return forward


def medians_ms(works: Mapping[str, Work], repeats: int) -> dict[str, float]:
    """The median time of each, in milliseconds; they take turns, after one turn that does not count."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats + 1):
        for name, work in works.items():
            started = time.perf_counter()
            work()
            times[name].append(1000.0 * (time.perf_counter() - started))
    return {name: statistics.median(each[1:]) for name, each in times.items()}


@torch.inference_mode()
def measure(model: PreTrainedModel, threads: int, repeats: int) -> dict[str, float]:
    """Medians in milliseconds, of the forward pass and of each way of sampling."""
    torch.set_num_threads(threads)
    forward = forward_of(model)
    rows = TorchRows(forward(), model.config.vocab_size)
    works: dict[str, Work] = {FORWARD: forward}
    for name, asked in requests(rows).items():
        works[name] = lambda asked=asked: rows.answer(asked)  # type: ignore[misc]
    return medians_ms(works, repeats)


def report(by_threads: Mapping[int, Mapping[str, float]], model: str, vocab_size: int, repeats: int) -> Report:
    """Times, and each way's share of the forward pass."""
    figures, goals = [], []
    for threads, medians in by_threads.items():
        for name, value in medians.items():
            share = value / medians[FORWARD]
            figures.append(Figure(f"{name}, {_threads(threads)}", value, "ms", f"{share:.1%} of the forward pass"))
            if name != FORWARD:
                goals.append(Goal(f"share of the forward pass: {name}, {_threads(threads)}", share, "<=", GOAL_SHARE))
    details = {
        "model": model,
        "vocab_size": vocab_size,
        "positions": POSITIONS,
        "prompt_tokens": PROMPT_TOKENS,
        "repeats": repeats,
    }
    return Report("sampling", max(by_threads), figures, goals, details)


def _threads(number: int) -> str:
    return "1 thread" if number == 1 else f"{number} threads"


def run(model: str, threads: Sequence[int], repeats: int) -> Report:
    """Measures with each number of threads."""
    directory = str(demo_directory("target")) if model == DEMO else model
    loaded = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    by_threads = {number: measure(loaded, number, repeats) for number in threads}
    return report(by_threads, model, loaded.config.vocab_size, repeats)


def main(
    model: Annotated[str, typer.Option(help="The target: a directory or 'demo'.")] = DEMO,
    threads: Annotated[list[int] | None, typer.Option(min=1, help="CPU threads; may be given twice.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Turns that count.")] = 50,
) -> None:
    """Measures sampling next to the forward pass it follows."""
    run(model, threads or [1, 2], repeats).publish()


if __name__ == "__main__":
    typer.run(main)
