"""Step 4: what the draft is worth on the held-out prompts.

    python -m training.measure --target DIR --heldout WORK [--draft DIR] [--out FILE]

WORK holds the target's answers to `heldout.jsonl` (shards `greedy-*` and `sampled-*`); missing ones are made first.
Both models score the answers once; the rounds are then played on the scores (rounds.py).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.draft import DRAFT_IDS_FILE
from training.generate import SYSTEM, Limits, generate, render
from training.prompts import write_held_out
from training.rounds import (
    Round,
    acceptance_by_position,
    coupled_acceptance,
    play,
    rejection_acceptance,
    tokens_a_round,
)
from training.shards import Record, read_shards
from training.target import TargetModel

CHUNKS = (4, 8)
HELD_OUT_LIMITS = Limits(batch=50, max_new=96)
REPEATS = 20  # sampled answers: rounds are played this often, with other random numbers


@dataclass(frozen=True)
class Answer:
    """A held-out answer; `stands` `[answer]` says how likely the draft's token is the answer's, rule by rule."""

    token_ids: tuple[int, ...]
    kind: str
    prompt_len: int
    stands: dict[str, Tensor]


class Scorer:
    """A checkpoint that scores whole sequences.

    With `restricted`, ids outside the draft's list get no probability; a draft without a list may propose every id.
    """

    def __init__(self, directory: Path, restricted: bool) -> None:
        self.model = TargetModel(directory)
        self.outside = torch.zeros(len(self.model.head), dtype=torch.bool)
        if restricted and (directory / DRAFT_IDS_FILE).is_file():
            self.outside[:] = True
            self.outside[torch.tensor(json.loads((directory / DRAFT_IDS_FILE).read_text()))] = False

    def __call__(self, token_ids: Sequence[int], first: int) -> Tensor:
        """Scores `[n, vocabulary]` for the tokens from `first` on, n of them."""
        length = len(token_ids) - 1
        cache = self.model.new_cache(1, length)
        visible = torch.ones(1, length, dtype=torch.bool)
        ids = torch.tensor([list(token_ids[:-1])])
        hidden = self.model.prefill(cache, slice(0, 1), ids, 0, torch.arange(length)[None], visible)
        return self.model.logits(hidden[0, first - 1 :]).masked_fill_(self.outside, float("-inf"))


def greedy_answers(records: Sequence[Record], kinds: Mapping[tuple[int, ...], str], draft: Scorer) -> Iterator[Answer]:
    """The target's greedy answers, and where the draft's best token is the answer's."""
    for record in records:
        token_ids = (*record.prompt.tolist(), *record.response.tolist())
        best = draft(token_ids, len(record.prompt)).argmax(-1)
        stands = best == torch.tensor(record.response.tolist())
        yield Answer(token_ids, kinds[tuple(record.prompt.tolist())], len(record.prompt), {"greedy": stands.float()})


def sampled_answers(
    records: Sequence[Record], kinds: Mapping[tuple[int, ...], str], draft: Scorer, target: Scorer
) -> Iterator[Answer]:
    """The target's answers at temperature 1, and how likely each token stands under either lossless rule."""
    for record in records:
        token_ids = (*record.prompt.tolist(), *record.response.tolist())
        drawn = torch.tensor(record.response.tolist())
        laws = [scorer(token_ids, len(record.prompt)).softmax(-1) for scorer in (target, draft)]
        stands = {
            "rejection": rejection_acceptance(laws[0], laws[1], drawn),
            "coupled": coupled_acceptance(laws[0], laws[1], drawn),
        }
        yield Answer(token_ids, kinds[tuple(record.prompt.tolist())], len(record.prompt), stands)


def play_all(answers: Sequence[Answer], rule: str, chunk: int, lookup: bool) -> list[Round]:
    """The rounds of all answers; certain events are played once, others `REPEATS` times with fixed seeds."""
    rounds = []
    for repeat in range(1 if rule == "greedy" else REPEATS):
        random = torch.Generator().manual_seed(repeat)
        for answer in answers:
            probs = answer.stands[rule]
            stands = torch.rand(len(probs), generator=random) < probs
            rounds += play(answer.token_ids, answer.prompt_len, stands.tolist(), chunk, lookup)
    return rounds


def summarise(answers: Sequence[Answer], rule: str) -> dict[str, float | list[float]]:
    """Acceptance and rounds of one rule, alone and behind prompt lookup."""
    stands = torch.cat([answer.stands[rule] for answer in answers])
    summary: dict[str, float | list[float]] = {"acceptance": float(stands.mean()), "positions": float(len(stands))}
    for chunk in CHUNKS:
        for name, lookup in (("alone", False), ("with_lookup", True)):
            rounds = play_all(answers, rule, chunk, lookup)
            summary[f"tokens_a_round_{name}_chunk_{chunk}"] = tokens_a_round(rounds)
            summary[f"accepted_len_{name}_chunk_{chunk}"] = tokens_a_round(rounds) - 1
    alone = play_all(answers, rule, max(CHUNKS), lookup=False)
    summary["acceptance_by_position"] = acceptance_by_position(alone, max(CHUNKS))
    return summary


def summarise_kinds(answers: Sequence[Answer], rule: str) -> dict[str, dict[str, float | list[float]]]:
    """`summarise` for every kind of prompt."""
    kinds = sorted({answer.kind for answer in answers})
    return {kind: summarise([answer for answer in answers if answer.kind == kind], rule) for kind in kinds}


def read_kinds(tokenizer: Tokenizer) -> dict[tuple[int, ...], str]:
    """The kind of each held-out prompt by its token ids."""
    entries = [json.loads(line) for line in (Path(__file__).parent / "heldout.jsonl").read_text().splitlines()]
    prefix = tokenizer.encode(SYSTEM, add_special_tokens=False).ids
    texts = [render(entry["messages"]) for entry in entries]
    encoded = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    return {tuple(prefix + ids): entry["kind"] for ids, entry in zip(encoded, entries, strict=True)}


def measure(target_directory: Path, draft_directory: Path, heldout: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """All figures that need no clock, by rule: greedy, rejection, coupled."""
    draft = Scorer(draft_directory, restricted=True)
    kinds = read_kinds(Tokenizer.from_file(str(target_directory / "tokenizer.json")))
    with torch.inference_mode():
        say("greedy answers")
        greedy = list(greedy_answers(read_shards(heldout, "greedy-*.safetensors"), kinds, draft))
        say("sampled answers")
        target = Scorer(target_directory, restricted=False)
        sampled = list(sampled_answers(read_shards(heldout, "sampled-*.safetensors"), kinds, draft, target))
    say("rounds")
    return {
        "greedy": summarise(greedy, "greedy"),
        "greedy_by_kind": summarise_kinds(greedy, "greedy"),
        "rejection": summarise(sampled, "rejection"),
        "coupled": summarise(sampled, "coupled"),
    }


def answer_held_out(target: Path, heldout: Path) -> None:
    """Let the target answer the held-out prompts, greedily and at temperature 1, unless that is done."""
    heldout.mkdir(parents=True, exist_ok=True)
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        prompts = heldout / f"{name}.jsonl"
        write_held_out(prompts, temperature)
        generate(target, prompts, heldout, HELD_OUT_LIMITS)


def main() -> None:
    """Run the step (see the module's docstring)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, help="directory of the target checkpoint")
    parser.add_argument(
        "--draft", type=Path, help="directory of the draft checkpoint; without one, only answer the prompts"
    )
    parser.add_argument("--heldout", type=Path, required=True, help="directory of the held-out shards")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    answer_held_out(arguments.target, arguments.heldout)
    if arguments.draft is None:
        return
    figures = measure(arguments.target, arguments.draft, arguments.heldout, lambda stage: print(stage, flush=True))
    text = json.dumps(figures, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
