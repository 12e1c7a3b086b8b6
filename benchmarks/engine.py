"""The serving engine against transformers' own generation, and what its steps cost. `make bench-engine`.

Same weights, dtype and threads for all; ours and theirs take turns, several times, and medians are compared. Figures of
ours are measured through `Verifier`, as the service uses it, without gRPC.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import torch
import typer
from transformers import (
    AutoModelForCausalLM,
    ContinuousBatchingConfig,  # noqa: TID251 - theirs, to compare with
    GenerationConfig,
    PreTrainedModel,
)

from benchmarks.report import Figure, Goal, Report
from speculative.engine.demo_model import demo_directory
from speculative.engine.interface import Slice
from speculative.engine.loading import LoadSettings
from speculative.engine.runner import TransformersRunner
from speculative.engine.worker import Engine, EngineSettings
from speculative.messages import Check, VerifyOpen
from speculative.sampling.types import SamplingParams
from verifier_service.verifier import Verifier

GREEDY = SamplingParams(temperature=0.0)
BATCHES = (1, 8, 32)
GOALS = {1: 1.4, 8: 3.0, 32: 3.0}
CHUNKS = range(16)
CONTEXTS = (512, 4096)
SEQUENCES = (1, 8, 32, 64)
LONG_PROMPT = 4096


def random_prompt(rng: random.Random, length: int) -> tuple[int, ...]:
    """Ordinary ids of SmolLM2's vocabulary."""
    return tuple(rng.randrange(300, 40_000) for _ in range(length))


def mixed_prompts(count: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Prompts of 16 to 128 tokens; another seed gives others, so that no prompt is found in a cache."""
    rng = random.Random(1000 * seed + count)
    return [random_prompt(rng, rng.randint(16, 128)) for _ in range(count)]


class Ours:
    """The model in our engine."""

    def __init__(self, path: str, threads: int) -> None:
        from speculative.engine.checkpoint import load_checkpoint

        settings = LoadSettings(threads=threads, cache_tokens=16_384, device="cpu")
        runner = load_checkpoint(path, "demo", settings).runner
        assert isinstance(runner, TransformersRunner)
        self.runner = runner
        self.settings = EngineSettings(integrity_every_steps=0)

    async def decode(self, prompts: Sequence[tuple[int, ...]], max_tokens: int) -> None:
        """Plain decoding: one step of the target at a time for each, all together."""
        async with running(self) as verifier, asyncio.TaskGroup() as group:
            for prompt in prompts:
                group.create_task(decode_one(verifier, prompt, max_tokens))


class running:  # noqa: N801 - it is used like a function
    """An engine for the length of a block, with a Verifier on it."""

    def __init__(self, ours: Ours) -> None:
        self._engine = Engine(ours.runner, ours.settings)

    async def __aenter__(self) -> Verifier:
        await self._engine.start()
        return Verifier(self._engine, {})

    async def __aexit__(self, *exc: object) -> None:
        async with asyncio.timeout(30):
            while self._engine.stats().free_blocks != self._engine.stats().num_blocks:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await self._engine.stop()


async def decode_one(verifier: Verifier, prompt: tuple[int, ...], max_tokens: int) -> None:
    """`max_tokens` plain steps."""
    async with verifier.session(VerifyOpen(prompt, GREEDY, 0)) as session:
        for i in range(max_tokens):
            await session.check(Check(len(prompt) + i, ()))


class Theirs:
    """The model in transformers."""

    def __init__(self, path: str) -> None:
        self.model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self.model.eval()

    def decode(self, prompts: Sequence[tuple[int, ...]], max_tokens: int) -> None:
        """`generate` for one sequence, `generate_batch` for several."""
        if len(prompts) == 1:
            self._generate(prompts[0], max_tokens)
        else:
            self._generate_batch(prompts, max_tokens)

    def _generate(self, prompt: tuple[int, ...], max_tokens: int) -> None:
        self.model.generate(  # type: ignore[operator]
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            do_sample=False,
            max_new_tokens=max_tokens,
            min_new_tokens=max_tokens,
        )

    def _generate_batch(self, prompts: Sequence[tuple[int, ...]], max_tokens: int) -> None:
        self.model.generate_batch(  # type: ignore[operator]
            [list(prompt) for prompt in prompts],
            generation_config=GenerationConfig(max_new_tokens=max_tokens, do_sample=False, eos_token_id=-1),
            continuous_batching_config=ContinuousBatchingConfig(
                max_memory_percent=0.2, max_requests_per_batch=64, num_blocks=64, max_batch_tokens=512
            ),
        )


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def throughput(ours: Ours, theirs: Theirs, tokens: int, repeats: int) -> tuple[list[Figure], list[Goal]]:
    """Tokens per second of plain decoding, side by side."""
    figures, goals = [], []
    for batch in BATCHES:
        total = batch * tokens
        rates: dict[str, list[float]] = {"ours": [], "transformers": []}
        for repeat in range(repeats):
            prompts = mixed_prompts(batch, repeat)
            rates["ours"].append(total / timed(lambda p=prompts: asyncio.run(ours.decode(p, tokens))))  # type: ignore[misc]
            rates["transformers"].append(total / timed(lambda p=prompts: theirs.decode(p, tokens)))  # type: ignore[misc]
        medians = {name: statistics.median(values) for name, values in rates.items()}
        figures += [Figure(f"{name}, {batch} sequences", rate, "tokens/s") for name, rate in medians.items()]
        goals.append(
            Goal(f"plain decoding, {batch} sequences", medians["ours"] / medians["transformers"], ">=", GOALS[batch])
        )
    return figures, goals


@contextmanager
def sequences(ours: Ours, count: int, context: int) -> Iterator[list[str]]:
    """`count` sequences of `context` random tokens in the cache; they share the tokens, but not the reading of them."""
    blocks, tokens = ours.runner.blocks, random_prompt(random.Random(context), context)
    names = [f"bench{i}" for i in range(count)]
    try:
        for name in names:
            cached = blocks.attach(name, tokens)
            while cached < context:
                size = min(512, context - cached)
                if not blocks.reserve(name, cached, size + len(CHUNKS) + 1):
                    raise RuntimeError("the cache is too small for this benchmark")
                ours.runner.logits([Slice(name, tokens[cached : cached + size], cached, 0, ())])
                cached += size
            blocks.commit(name, tokens, context)
            if not blocks.reserve(name, context, len(CHUNKS) + 1):
                raise RuntimeError("the cache is too small for this benchmark")
        yield names
    finally:
        for name in names:
            blocks.release(name)


def step_ms(ours: Ours, names: Sequence[str], context: int, fed: int, repeats: int) -> float:
    """Median time of a step in which every sequence feeds `fed` tokens and wants all their rows."""
    slices = [Slice(name, list(range(300, 300 + fed)), context, fed, ()) for name in names]
    return statistics.median(timed(lambda: ours.runner.logits(slices)) for _ in range(repeats)) * 1e3


def verification(ours: Ours, repeats: int) -> list[Figure]:
    """The cost of verifying k draft tokens, relative to a plain step."""
    with sequences(ours, 1, 150) as names:
        times: dict[int, list[float]] = {k: [] for k in CHUNKS}
        for _ in range(repeats):
            for k in CHUNKS:
                times[k].append(step_ms(ours, names, 150, k + 1, 1))
    medians = {k: statistics.median(values) for k, values in times.items()}
    plain = Figure("plain step at 150 tokens", medians[0], "ms")
    return [plain, *(Figure(f"verifying {k} draft tokens", medians[k] / medians[0], "plain steps") for k in CHUNKS[1:])]


def batches(ours: Ours, repeats: int) -> tuple[list[Figure], list[Goal]]:
    """Step times by batch and context: with the batch they must grow no faster than the tokens read."""
    figures, goals = [], []
    for context in CONTEXTS:
        times = {}
        for count in SEQUENCES:
            with sequences(ours, count, context) as names:
                times[count] = step_ms(ours, names, context, 1, repeats)
            figures.append(Figure(f"step of {count} sequences at {context} tokens", times[count], "ms"))
        growth = times[64] / times[8] / (64 / 8)
        goals.append(
            Goal(f"growth from 8 to 64 sequences at {context} tokens over growth of tokens", growth, "<=", 1.0)
        )
    return figures, goals


async def prefill(ours: Ours) -> Figure:
    """Tokens per second of a long prompt."""
    async with running(ours) as verifier:
        prompt = random_prompt(random.Random(5), 2048)
        begun = time.perf_counter()
        async with verifier.session(VerifyOpen(prompt, GREEDY, 0)):
            return Figure("prompt processing", len(prompt) / (time.perf_counter() - begun), "tokens/s")


async def opening(ours: Ours) -> Figure:
    """Sessions opened (one token), checked once and closed, one after the other."""
    async with running(ours) as verifier:
        begun = time.perf_counter()
        for _ in range(20):
            await decode_one(verifier, (300,), 1)
        return Figure("sessions opened, answered one token and closed", 20 / (time.perf_counter() - begun), "1/s")


async def latency(ours: Ours, *, long_prompt: bool) -> list[float]:
    """Milliseconds of each verification of 4 draft tokens in 4 sessions, with a long prompt arriving or without."""
    took: list[float] = []
    stop = asyncio.Event()

    async def converse(verifier: Verifier, prompt: tuple[int, ...]) -> None:
        async with verifier.session(VerifyOpen(prompt, GREEDY, 0)) as session:
            base_len = len(prompt)
            while not stop.is_set():
                begun = time.perf_counter()
                verdict = await session.check(Check(base_len, (300, 301, 302, 303)))
                took.append((time.perf_counter() - begun) * 1e3)
                base_len += verdict.accepted_len + 1

    async with running(ours) as verifier, asyncio.TaskGroup() as group:
        for prompt in mixed_prompts(4):
            group.create_task(converse(verifier, prompt))
        if long_prompt:
            async with verifier.session(VerifyOpen(random_prompt(random.Random(9), LONG_PROMPT), GREEDY, 0)):
                stop.set()
        else:
            await asyncio.sleep(8)
            stop.set()
    return took


def latencies(ours: Ours) -> list[Figure]:
    """p50 and p99 of the verification latency."""
    figures = []
    for label, long_prompt in (("alone", False), (f"while a prompt of {LONG_PROMPT} tokens arrives", True)):
        took = sorted(asyncio.run(latency(ours, long_prompt=long_prompt)))
        figures.append(Figure(f"verification in 4 sessions {label}, p50", took[len(took) // 2], "ms"))
        figures.append(Figure(f"verification in 4 sessions {label}, p99", took[int(len(took) * 0.99)], "ms"))
    return figures


def memory(ours: Ours) -> list[Figure]:
    """Memory of a session of 512 tokens, from the allocator and from the model's shape."""
    allocator = ours.runner.blocks.cache.cache_allocators["full_attention"]
    config = ours.runner._model.config
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4
    blocks = 512 // ours.runner.blocks.block_tokens
    return [
        Figure("session of 512 tokens", blocks * allocator.bytes_per_block / 2**20, "MiB"),
        Figure("the same by the shape of the model", 512 * per_token / 2**20, "MiB"),
    ]


def main(
    model: Annotated[str, typer.Option(help="Directory; the demo target by default.")] = "",
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 2,
    tokens: Annotated[int, typer.Option(help="Tokens decoded by each sequence.")] = 32,
    repeats: Annotated[int, typer.Option(help="How often everything is measured.")] = 5,
) -> None:
    """Measures everything and writes benchmarks/results/engine.json."""
    torch.set_num_threads(threads)
    path = model or str(demo_directory("target"))
    ours, theirs = Ours(path, threads), Theirs(path)
    rates, rate_goals = throughput(ours, theirs, tokens, repeats)
    steps, step_goals = batches(ours, repeats)
    figures = [
        *rates,
        *verification(ours, repeats),
        *steps,
        asyncio.run(prefill(ours)),
        asyncio.run(opening(ours)),
        *latencies(ours),
        *memory(ours),
    ]
    Report("engine", threads, figures, [*rate_goals, *step_goals]).publish()


if __name__ == "__main__":
    typer.run(main)
