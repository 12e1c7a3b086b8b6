"""What a round costs besides the models: gRPC twice, three processes, the loop, the scheduler, the codec.

The models are emulated: a verification takes 20 ms and a draft token 1 ms, so whatever a round takes beyond that is
ours. A round is measured where it matters, at the client: from one Delta of an answer to the next. The first rounds of
an answer are left out (they include the prompt).
"""

import statistics
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated

import typer
import uvloop

from benchmarks.echo import echo_server, round_trip_ms
from benchmarks.report import Figure, Goal, Report
from benchmarks.trio import Flags, trio
from controller.clients import GenerationClient
from speculative.generation import Delta, GenerationRequest, SpeculationOptions, StopConditions, TextPrompt
from speculative.sampling.types import SamplingParams

VERIFY_MS = 20.0
"""Time of a verification."""
DRAFT_MS = 1.0
"""Time of a draft token; computing its emulated law is part of it."""
GOAL_MS = 1.0
SKIPPED_ROUNDS = 5
CHUNK = 4
_MODEL = "emulated:{profile}?forward_ms={forward_ms}&eos_rate=0&agree={agree}"


@dataclass(frozen=True, slots=True)
class Round:
    """One round, times in milliseconds: as the client and the services saw it."""

    drafted: int
    client_ms: float
    draft_ms: float
    queue_ms: float
    forward_ms: float


async def measure(client: GenerationClient, rounds: int, policy: str) -> list[Round]:
    """The rounds of one answer of `rounds` rounds or a few more."""
    speculation = SpeculationOptions(policy, {"length": CHUNK, "guard": 0} if policy == "fixed" else {})
    request = GenerationRequest(
        TextPrompt("The outrider rides ahead of the carriage."),
        SamplingParams(temperature=0.0),
        stop=StopConditions(max_tokens=rounds * (CHUNK + 1 if policy == "fixed" else 1)),
        speculation=speculation,
        round_trace=True,
    )
    measured: list[Round] = []
    before_ns = time.monotonic_ns()
    async with aclosing(client.generate(request, timeout_s=600)) as events:
        async for event in events:
            now_ns = time.monotonic_ns()
            if isinstance(event, Delta) and event.round is not None:
                trace = event.round
                nanoseconds = (now_ns - before_ns, trace.draft_ns, trace.queue_ns, trace.forward_ns)
                measured.append(Round(len(trace.draft_token_ids), *(value / 1e6 for value in nanoseconds)))
            before_ns = now_ns
            if len(measured) == rounds:
                break
    return measured[SKIPPED_ROUNDS:]


def overhead_ms(rounds: Sequence[Round]) -> float:
    """Mean time of a round beyond the emulated models'."""
    return statistics.fmean(one.client_ms - one.drafted * DRAFT_MS for one in rounds) - VERIFY_MS


def parts_ms(rounds: Sequence[Round]) -> dict[str, float]:
    """Where that time goes: medians of what each service accounts for, and of what neither does."""
    parts = {
        "in the draft service": [one.draft_ms - one.drafted * DRAFT_MS for one in rounds],
        "in the verifier service": [one.queue_ms + one.forward_ms - VERIFY_MS for one in rounds],
        "gRPC and the loop": [one.client_ms - one.draft_ms - one.queue_ms - one.forward_ms for one in rounds],
    }
    return {name: statistics.median(values) for name, values in parts.items()}


def report(
    speculative: Sequence[Sequence[Round]], plain: Sequence[Sequence[Round]], echoes_ms: Sequence[float]
) -> Report:
    """Medians over the runs; each run is one answer. `echoes_ms`: round trips of bare gRPC, one for each run."""
    overheads_ms = list(map(overhead_ms, speculative))
    goal_ms = statistics.median(overheads_ms)
    note = f"chunks of {CHUNK}; median of {len(speculative)} runs' means"
    figures = [
        Figure("overhead of a round", goal_ms, "ms", note),
        Figure("overhead of a round, least run", min(overheads_ms), "ms"),
        Figure("overhead of a round, worst run", max(overheads_ms), "ms"),
        Figure("overhead of a plain step", statistics.median(map(overhead_ms, plain)), "ms", "speculation off"),
    ]
    parts = parts_ms([one for run in speculative for one in run])
    figures += [Figure(name, value, "ms", "of a round, median") for name, value in parts.items()]
    echo_ms = 2 * statistics.median(echoes_ms)
    figures.append(Figure("bare gRPC, two round trips", echo_ms, "ms", "an echo on this machine: the least possible"))
    goals = [Goal("overhead of a round (ms)", goal_ms, "<=", GOAL_MS)]
    details = {
        "verify_ms": VERIFY_MS,
        "draft_ms": DRAFT_MS,
        "chunk": CHUNK,
        "rounds": [len(run) for run in speculative],
        "overhead_ms": {"fixed": overheads_ms, "off": list(map(overhead_ms, plain))},
    }
    return Report("rpc_overhead", 1, figures, goals, details)


async def run(runs: int, rounds: int) -> Report:
    """Measures `runs` answers with chunks, as many without, and as many rows of echoes, in turns."""
    flags = Flags(
        draft=["--model", _MODEL.format(profile="draft", forward_ms=DRAFT_MS, agree=0.8)],
        verifier=["--model", _MODEL.format(profile="verify20ms", forward_ms=VERIFY_MS, agree=1)],
    )
    speculative, plain, echoes_ms = [], [], []
    async with echo_server() as echo, trio(flags) as client:
        await measure(client, 2 * SKIPPED_ROUNDS, "fixed")
        for _ in range(runs):
            speculative.append(await measure(client, rounds, "fixed"))
            plain.append(await measure(client, rounds, "off"))
            echoes_ms.append(await round_trip_ms(echo, rounds, VERIFY_MS / 1e3))
    return report(speculative, plain, echoes_ms)


def main(
    runs: Annotated[int, typer.Option(min=1, help="Answers of each kind.")] = 7,
    rounds: Annotated[int, typer.Option(min=2 * SKIPPED_ROUNDS, help="Rounds of each answer.")] = 150,
) -> None:
    """Measures what a round costs besides the models."""
    uvloop.run(run(runs, rounds)).publish()


if __name__ == "__main__":
    typer.run(main)
