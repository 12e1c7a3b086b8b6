"""The demo: the same prompt with and without speculation."""

import dataclasses
import io

import pytest
from rich.console import Console

from controller.cli import demo
from controller.cli.connection import Remote
from speculative.generation import Delta, Finished, GenerationEvent, Started, Usage
from tests.cli.service import ANSWER, ScriptedGenerator


def answer_of(policy: str, drafted: int, delivered: int) -> tuple[GenerationEvent, ...]:
    started, *deltas, finished = ANSWER
    assert isinstance(started, Started)
    assert isinstance(finished, Finished)
    statistics = dataclasses.replace(finished.statistics, drafted=drafted)
    return (
        dataclasses.replace(started, policy=policy),
        *deltas,
        dataclasses.replace(finished, usage=Usage(3, delivered), statistics=statistics),
    )


async def compare(address: str) -> tuple[bool, str, str]:
    out, notes = (Console(file=io.StringIO(), width=200) for _ in range(2))
    equal = await demo.compare(Remote(address), "hi", 8, out, notes)
    return equal, out.file.getvalue(), notes.file.getvalue()  # type: ignore[attr-defined]


async def test_equal_answers_are_said_to_be_equal(address: str, generator: ScriptedGenerator) -> None:
    equal, answer, notes = await compare(address)

    assert equal
    assert answer == "naïve horse\n"
    assert "speculation on: 2.0 tokens/s (1.00x) · off: 2.0 tokens/s · outputs: equal, token for token" in notes
    warm_up, ahead, alone = generator.requests
    assert warm_up.stop.max_tokens == 1
    assert ahead.sampling.greedy
    assert dataclasses.replace(alone, speculation=ahead.speculation) == ahead
    assert alone.speculation.max_draft_tokens == 0


@pytest.mark.parametrize(
    ("policy", "drafted", "said"),
    [
        ("adasd", 15, "speculation did not pay with this draft and switched itself off"),
        ("off", 0, "there was no speculation"),
    ],
)
async def test_a_ratio_is_not_made_of_noise(
    address: str, generator: ScriptedGenerator, policy: str, drafted: int, said: str
) -> None:
    generator.events = generator.events_alone = answer_of(policy, drafted, delivered=64)
    equal, _, notes = await compare(address)

    assert equal
    assert said in notes
    assert "x)" not in notes
    assert "speculation on: 42.7 tokens/s · off: 42.7 tokens/s · outputs: equal, token for token" in notes


async def test_a_quarter_drafted_is_enough_for_a_ratio(address: str, generator: ScriptedGenerator) -> None:
    generator.events = generator.events_alone = answer_of("adasd", 16, delivered=64)
    _, _, notes = await compare(address)

    assert "(1.00x)" in notes
    assert "switched itself off" not in notes


async def test_a_difference_is_said_aloud(address: str, generator: ScriptedGenerator) -> None:
    delta = ANSWER[1]
    assert isinstance(delta, Delta)
    generator.events_alone = (ANSWER[0], dataclasses.replace(delta, token_ids=(10, 99)), *ANSWER[2:])
    equal, _, notes = await compare(address)

    assert not equal
    assert "outputs: NOT equal" in notes
