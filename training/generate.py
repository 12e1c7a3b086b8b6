"""Step 2: the target answers the prompts, and its law at every position of the answers is kept.

    python -m training.generate --target DIR --prompts FILE [--work DIR] [--max-new 128] [--minutes M]

Prompts of similar length share a batch; the system prompt is computed once. A batch is a shard: a run that is
stopped goes on with the first shard that is missing, and the seed of a shard is its number, so the result does not
depend on interruptions.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.shards import Record, write_shard
from training.target import PREFILL_ROWS, TargetModel

DEFAULT_WORK = Path.home() / ".cache" / "outrider" / "training"
SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
END_OF_TURN = 2
TOP_K = 16
SORT_WINDOW = 8  # batches whose prompts are sorted together: bounds padding without ordering the run by length
DROP_FINISHED_AT = 0.15  # share of finished rows at which the batch is made smaller


@dataclass(frozen=True)
class Prompt:
    """The token ids of a rendered conversation, system prompt excluded, and how to draw the answer."""

    token_ids: list[int]
    temperature: float


def render(messages: Sequence[dict[str, str]]) -> str:
    """The chat template of the target, without its default system message (see `SYSTEM`)."""
    turns = "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages)
    return turns + "<|im_start|>assistant\n"


def read_prompts(path: Path, tokenizer: Tokenizer, max_prompt: int) -> list[Prompt]:
    """The prompts of a JSON Lines file in its order; those longer than `max_prompt` tokens are left out."""
    prompts = []
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        token_ids = tokenizer.encode(render(entry["messages"]), add_special_tokens=False).ids
        if len(token_ids) <= max_prompt:
            prompts.append(Prompt(token_ids, float(entry.get("temperature", 0.0))))
    return prompts


def make_batches(prompts: Sequence[Prompt], batch_size: int) -> list[list[Prompt]]:
    """Cut the prompts into batches of similar length, near their original order."""
    window = batch_size * SORT_WINDOW
    batches = []
    for start in range(0, len(prompts), window):
        part = sorted(prompts[start : start + window], key=lambda prompt: len(prompt.token_ids))
        batches += [part[at : at + batch_size] for at in range(0, len(part), batch_size)]
    return batches


class Generation:
    """One batch being answered. Rows are dropped some time after they end; `rows` maps the others to the batch."""

    def __init__(
        self, model: TargetModel, prefix: Sequence[int], batch: Sequence[Prompt], max_new: int, seed: int
    ) -> None:
        self.model, self.prefix, self.batch, self.max_new = model, prefix, batch, max_new
        self.random = torch.Generator().manual_seed(seed)
        self.longest = max(len(prompt.token_ids) for prompt in batch)
        self.column = len(prefix) + self.longest
        self.cache = model.new_cache(len(batch), self.column + max_new)
        self.rows = torch.arange(len(batch))
        self.padding = torch.tensor([self.longest - len(prompt.token_ids) for prompt in batch])
        self.temperatures = torch.tensor([prompt.temperature for prompt in batch])
        columns = torch.arange(self.column + max_new)
        hidden_columns = (columns >= len(prefix)) & (columns < len(prefix) + self.padding[:, None])
        self.visible = ~hidden_columns
        self.tokens: list[list[int]] = [[] for _ in batch]
        self.top_ids: list[list[Tensor]] = [[] for _ in batch]
        self.top_probs: list[list[Tensor]] = [[] for _ in batch]

    def run(self) -> list[Record]:
        """Answer every prompt of the batch with at most `max_new` tokens, the end token included."""
        hidden = self._prefill()
        for step in range(self.max_new):
            chosen = self._choose(hidden)
            finished = torch.tensor([self.tokens[row][-1] == END_OF_TURN for row in self.rows.tolist()])
            if step + 1 == self.max_new or bool(finished.all()):
                break
            if finished.float().mean() >= DROP_FINISHED_AT:
                kept = (~finished).nonzero()[:, 0]
                self.cache.keep(kept, self.column)
                self.rows, chosen = self.rows[kept], chosen[kept]
            bias = torch.zeros(len(self.rows), self.column + 1)
            bias.masked_fill_(~self.visible[self.rows, : self.column + 1], float("-inf"))
            positions = self.column - self.padding[self.rows]
            hidden = self.model.decode(self.cache, chosen, self.column, positions, bias)
            self.column += 1
        return [self._record(row) for row in range(len(self.batch))]

    def _prefill(self) -> Tensor:
        prefix_len = len(self.prefix)
        prefix = torch.tensor([list(self.prefix)])
        ones = torch.ones(1, prefix_len, dtype=torch.bool)
        self.model.prefill(self.cache, slice(0, 1), prefix, 0, torch.arange(prefix_len)[None], ones)
        self.cache.data[:, :, :, :, :prefix_len] = self.cache.data[:, :, :1, :, :prefix_len].clone()
        padded = [[0] * (self.longest - len(p.token_ids)) + p.token_ids for p in self.batch]
        token_ids = torch.tensor(padded)
        positions = torch.arange(prefix_len, self.column) - self.padding[:, None]
        last = []
        for start in range(0, len(self.batch), PREFILL_ROWS):
            rows = slice(start, min(start + PREFILL_ROWS, len(self.batch)))
            visible = self.visible[rows, : self.column]
            hidden = self.model.prefill(
                self.cache, rows, token_ids[rows], prefix_len, positions[rows].clamp(min=0), visible
            )
            last.append(hidden[:, -1])
        return torch.cat(last)

    def _choose(self, hidden: Tensor) -> Tensor:
        """Draw the next token of every remaining row and keep the law it was drawn from."""
        logits = self.model.logits(hidden)
        top_logits, top_ids = logits.topk(TOP_K, dim=-1)
        probs = (top_logits - logits.logsumexp(-1, keepdim=True)).exp()
        chosen = top_ids[:, 0].clone()
        temperatures = self.temperatures[self.rows]
        drawn = temperatures > 0
        if bool(drawn.any()):
            cumulative = (logits[drawn] / temperatures[drawn, None]).softmax(-1).cumsum(-1)
            uniform = torch.rand(len(cumulative), 1, generator=self.random) * cumulative[:, -1:]
            chosen[drawn] = torch.searchsorted(cumulative, uniform)[:, 0].clamp(max=logits.shape[1] - 1)
        for index, row in enumerate(self.rows.tolist()):
            if not self.tokens[row] or self.tokens[row][-1] != END_OF_TURN:
                self.tokens[row].append(int(chosen[index]))
                self.top_ids[row].append(top_ids[index])
                self.top_probs[row].append(probs[index])
        return chosen

    def _record(self, row: int) -> Record:
        return Record(
            prompt=np.array([*self.prefix, *self.batch[row].token_ids], dtype=np.uint16),
            response=np.array(self.tokens[row], dtype=np.uint16),
            top_ids=torch.stack(self.top_ids[row]).numpy().astype(np.uint16),
            top_probs=torch.stack(self.top_probs[row]).numpy().astype(np.float16),
            temperature=self.batch[row].temperature,
        )


@dataclass(frozen=True)
class Limits:
    """Sizes of a run: sequences a batch, tokens of the longest prompt used and of the longest answer."""

    batch: int = 128
    max_prompt: int = 224
    max_new: int = 128


def generate(
    target: Path,
    prompts_file: Path,
    work: Path,
    limits: Limits,
    minutes: float = math.inf,
    part: tuple[int, int] = (0, 1),
) -> None:
    """Write the shards of `prompts_file` that are missing in `work`; start none after `minutes`.

    `part` (i, n): only every n-th shard from the i-th on, for n processes side by side.
    """
    model = TargetModel(target)
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    prefix = tokenizer.encode(SYSTEM, add_special_tokens=False).ids
    batches = make_batches(read_prompts(prompts_file, tokenizer, limits.max_prompt), limits.batch)
    began, tokens = time.monotonic(), 0
    for number, batch in list(enumerate(batches))[part[0] :: part[1]]:
        path = work / f"{prompts_file.stem}-{number:05d}.safetensors"
        if path.exists():
            continue
        if time.monotonic() - began > minutes * 60:
            break
        with torch.inference_mode():
            records = Generation(model, prefix, batch, limits.max_new, seed=number).run()
        write_shard(path, records)
        tokens += sum(len(record.response) for record in records)
        rate = tokens / (time.monotonic() - began)
        print(f"shard {number + 1}/{len(batches)}  {tokens} tokens  {rate:.0f} tokens/s", flush=True)


def main() -> None:
    """Run the step (see the module's docstring)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, help="directory of the target checkpoint")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON Lines file of prompts")
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK, help="where the shards go")
    parser.add_argument("--batch", type=int, default=Limits.batch, help="sequences a batch")
    parser.add_argument("--max-prompt", type=int, default=Limits.max_prompt, help="longest prompt used, tokens")
    parser.add_argument("--max-new", type=int, default=Limits.max_new, help="longest answer, tokens")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no batch after this time")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--part", default="0/1", help="I/N: of N processes working side by side this is the I-th, from 0"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    index, count = map(int, arguments.part.split("/"))
    limits = Limits(arguments.batch, arguments.max_prompt, arguments.max_new)
    generate(arguments.target, arguments.prompts, arguments.work, limits, arguments.minutes, (index, count))


if __name__ == "__main__":
    main()
