"""Training prompts are what the recipe says: repeatable, without gaps left in, of every kind."""

import json
import random
from collections import Counter
from pathlib import Path

from training import prompts


def test_the_same_seed_writes_the_same_prompts(tmp_path: Path) -> None:
    for name in ("one", "other"):
        rng = random.Random(4)
        made = [*prompts.topic_prompts(rng, 50), *prompts.passage_prompts(rng, 50), *prompts.task_prompts(rng, 50)]
        prompts.write_prompts(tmp_path / name, made, rng)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_no_slot_is_left_open_and_equal_slots_are_filled_equally() -> None:
    rng = random.Random(0)
    texts = [message["content"] for _, messages in prompts.passage_prompts(rng, 300) for message in messages]
    texts += [message["content"] for _, messages in prompts.topic_prompts(rng, 300) for message in messages]
    texts += [message["content"] for _, messages in prompts.task_prompts(rng, 300) for message in messages]
    slots = ("{t}", "{p}", "{c}", *(f"{{{slot}}}" for slot in prompts.SLOTS))
    assert [text for text in texts if any(slot in text for slot in slots)] == []
    first, second = prompts.fill_slots("{name} met {name}", rng).split(" met ")
    assert first == second


def test_a_repeated_request_is_written_once(tmp_path: Path) -> None:
    request = ("chat", [{"role": "user", "content": "Hello"}])
    prompts.write_prompts(tmp_path / "out", [request, request], random.Random(0))
    assert len((tmp_path / "out").read_text().splitlines()) == 1


def test_answers_become_texts_to_work_on_and_further_turns() -> None:
    answers = [("What is rain?", "Rain is water that falls from clouds. It fills rivers. " * 3)] * 200
    made = list(prompts.answer_prompts(answers, random.Random(0)))
    assert {kind for kind, _ in made} == {"chat", "summary", "copy"}
    turns = Counter(len(messages) for _, messages in made)
    assert set(turns) == {1, 3}
    follow_up = next(messages for _, messages in made if len(messages) == 3)
    assert [message["role"] for message in follow_up] == ["user", "assistant", "user"]


def test_python_in_an_answer_becomes_a_request_about_code() -> None:
    answers = [("Write code.", "Here it is:\n\n```python\ndef one():\n    return 1\n```\n")] * 60
    made = [
        messages[-1]["content"]
        for _, messages in prompts.answer_prompts(answers, random.Random(0))
        if len(messages) == 1
    ]
    assert made
    assert all("```python\ndef one():" in content for content in made)


def test_held_out_prompts_are_written_whole_with_the_temperature(tmp_path: Path) -> None:
    prompts.write_held_out(tmp_path / "greedy.jsonl", 0.0)
    entries = [json.loads(line) for line in (tmp_path / "greedy.jsonl").read_text().splitlines()]
    assert len(entries) == 100
    assert {entry["temperature"] for entry in entries} == {0.0}
