"""The held-out prompts are what they claim to be and are kept apart from training."""

import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest

import training
from training import prompts

HELDOUT = Path(training.__path__[0]) / "heldout.jsonl"
KINDS = ("chat", "code", "summary", "list", "copy")


@pytest.fixture(scope="module")
def held_out() -> list[dict[str, object]]:
    return [json.loads(line) for line in HELDOUT.read_text().splitlines()]


@pytest.fixture(scope="module")
def training_texts() -> list[str]:
    rng = random.Random(prompts.SEED)
    made = [
        *prompts.topic_prompts(rng, 2000),
        *prompts.task_prompts(rng, 2000),
        *prompts.passage_prompts(rng, 1000),
        *prompts.documentation_prompts(rng, 100),
    ]
    return [message["content"] for _, messages in made for message in messages]


def _text(entry: dict[str, object]) -> str:
    messages = entry["messages"]
    assert isinstance(messages, list)
    return str(messages[-1]["content"])


def test_one_hundred_prompts_twenty_of_each_kind(held_out: list[dict[str, object]]) -> None:
    assert Counter(entry["kind"] for entry in held_out) == dict.fromkeys(KINDS, 20)
    assert len({_text(entry) for entry in held_out}) == 100


def test_no_held_out_prompt_is_a_training_prompt(held_out: list[dict[str, object]], training_texts: list[str]) -> None:
    assert {_text(entry) for entry in held_out}.isdisjoint(training_texts)


def test_no_held_out_topic_is_a_training_topic(training_texts: list[str]) -> None:
    topics = prompts.read_topics(held_out=True)
    assert len(topics) == 30
    assert set(topics).isdisjoint(prompts.read_topics())
    asked = "\n".join(training_texts)
    assert [topic for topic in topics if re.search(rf"\b{re.escape(topic)}\b", asked)] == []


def test_no_passage_of_ten_words_is_shared(held_out: list[dict[str, object]], training_texts: list[str]) -> None:
    def runs(text: str) -> set[tuple[str, ...]]:
        words = re.findall(r"\w+", text.lower())
        return {tuple(words[at : at + 10]) for at in range(len(words) - 9)}

    trained = set().union(*map(runs, training_texts))
    assert [entry["id"] for entry in held_out if runs(_text(entry)) & trained] == []
