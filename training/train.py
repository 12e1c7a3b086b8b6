"""Step 3: distil the target's law into the draft.

    python -m training.train --target DIR --work DIR --out DIR --steps N --decay M [--layers 2] [--width 192] ...

The loss at each response position is the cross-entropy to a mix of the target's most likely token (`ARGMAX_SHARE`) and
its 16 most likely tokens. The softmax runs over the ids that the laws of a batch name, and a random sample that stands
for all others. Muon (arXiv 2502.16982) moves the matrices, Adam the table (only the rows that a batch touches) and the
norms. The rate warms up, stays, and falls linearly to zero over the last `--decay` steps. A stopped run goes on from
its last checkpoint; so does a run that is given more data and more steps, as long as its rate has not begun to fall.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.functional import embedding

from training.draft import DraftModel, DraftShape, export, initial_table
from training.generate import DEFAULT_WORK
from training.shards import Record, read_shards

ARGMAX_SHARE = 0.25
LEAST_PROB = 1e-3  # less probable tokens of a law are left out of the loss
SAMPLE = 512  # ranks drawn to stand for all those that a batch does not name
MUON_MOMENTUM = 0.95
VALIDATION_EVERY = 25
WARMUP_STEPS = 30
SUMMARY_FILE = "training.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


@dataclass(frozen=True)
class Example:
    """A record in ranks: the input, and for its last `len(best)` columns the law of the next token."""

    ranks: Tensor  # [columns]
    top_ranks: Tensor  # [labelled, k]
    top_probs: Tensor  # [labelled, k]


@dataclass(frozen=True)
class Batch:
    """Padded examples; `labelled` picks the positions with a law, row by row, as the rows of the other two."""

    ranks: Tensor  # [rows, columns]
    labelled: Tensor  # [rows, columns] bool
    top_ranks: Tensor  # [labelled, k]
    top_probs: Tensor  # [labelled, k]


class Muon(torch.optim.Optimizer):
    """Momentum whose matrix updates are orthogonalised by five Newton-Schulz steps (arXiv 2502.16982).

    torch's own computes them in bfloat16, which CPUs without such instructions emulate slowly.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], lr: float, momentum: float = MUON_MOMENTUM) -> None:
        super().__init__(list(parameters), {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                average = state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                update = parameter.grad.lerp(average, group["momentum"])
                scale = 0.2 * math.sqrt(max(parameter.shape))
                parameter.add_(orthogonalise(update), alpha=-group["lr"] * scale)


def orthogonalise(matrix: Tensor) -> Tensor:
    """An approximation of the nearest semi-orthogonal matrix: singular values end near one."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.t()
    result: Tensor = wide / (wide.norm() + 1e-7)
    for _ in range(5):
        gram = result @ result.t()
        result = 3.4445 * result + (-4.7750 * gram + 2.0315 * gram @ gram) @ result
    return result if matrix.shape[0] <= matrix.shape[1] else result.t()


def rank_order(records: Sequence[Record], vocab_size: int) -> tuple[Tensor, Tensor]:
    """(`order`, `mass`): ids by how much of the target's probability they got, and that mass per id."""
    mass = np.zeros(vocab_size)
    for record in records:
        np.add.at(mass, record.top_ids.reshape(-1), record.top_probs.reshape(-1).astype(np.float64))
        np.add.at(mass, record.prompt, 1e-3)
        np.add.at(mass, record.response, 1e-3)
    total = torch.from_numpy(mass)
    return torch.argsort(total, descending=True, stable=True), total.float()


def make_example(record: Record, rank_of: Tensor) -> Example:
    """Translate a record to ranks."""
    token_ids = np.concatenate([record.prompt, record.response[:-1]]).astype(np.int64)
    return Example(
        ranks=rank_of[torch.from_numpy(token_ids)].int(),
        top_ranks=rank_of[torch.from_numpy(record.top_ids.astype(np.int64))].int(),
        top_probs=torch.from_numpy(record.top_probs),
    )


def split(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """(training, validation); the latter is every `VALIDATION_EVERY`-th example.

    These choose sizes and rates; the held-out prompts only judge the result.
    """
    kept = [example for index, example in enumerate(examples) if index % VALIDATION_EVERY]
    return kept, list(examples[::VALIDATION_EVERY])


def collate(examples: Sequence[Example]) -> Batch:
    """Pad on the right; padding is rank 0 and never labelled."""
    columns = max(len(example.ranks) for example in examples)
    ranks = torch.zeros(len(examples), columns, dtype=torch.long)
    labelled = torch.zeros(len(examples), columns, dtype=torch.bool)
    for row, example in enumerate(examples):
        ranks[row, : len(example.ranks)] = example.ranks
        labelled[row, len(example.ranks) - len(example.top_ranks) : len(example.ranks)] = True
    return Batch(
        ranks,
        labelled,
        torch.cat([example.top_ranks for example in examples]).long(),
        torch.cat([example.top_probs for example in examples]).float(),
    )


def batches(examples: Sequence[Example], max_tokens: int, seed: int) -> Iterator[list[int]]:
    """Endless batches of example indices of similar length, at most `max_tokens` with padding; epochs differ."""
    rng = random.Random(seed)
    lengths = [len(example.ranks) for example in examples]
    while True:
        by_length = sorted(range(len(examples)), key=lambda index: lengths[index] + 24 * rng.random())
        groups: list[list[int]] = [[]]
        for index in by_length:
            if (len(groups[-1]) + 1) * lengths[index] > max_tokens and groups[-1]:
                groups.append([])
            groups[-1].append(index)
        rng.shuffle(groups)
        yield from groups


def candidates(batch: Batch, vocab_size: int, sample: int, generator: torch.Generator) -> tuple[Tensor, int]:
    """(`ranks`, `named`): the ranks that the loss scores, and how many of them the laws of the batch name.

    The named ones come first, ascending; the others are a random sample of all the rest.
    """
    named = torch.unique(batch.top_ranks[batch.top_probs > LEAST_PROB])
    rest = torch.ones(vocab_size, dtype=torch.bool)
    rest[named] = False
    outside = rest.nonzero()[:, 0]
    drawn = outside[torch.randint(len(outside), (min(sample, len(outside)),), generator=generator)]
    return torch.cat((named, drawn)), len(named)


def distillation_loss(model: DraftModel, batch: Batch, ranks: Tensor, named: int) -> Tensor:
    """Mean cross-entropy to the target's law over the labelled positions, nats; `ranks`, `named`: see `candidates`.

    The sample stands for all ranks that the batch does not name, so its scores are raised by the logarithm of how many
    of them each drawn one stands for.
    """
    hidden = model(batch.ranks)[batch.labelled]
    scores = hidden @ embedding(ranks, model.table, sparse=True).t()
    scale = torch.zeros(len(ranks))
    if len(ranks) > named:
        scale[named:] = math.log((model.shape.vocab_size - named) / (len(ranks) - named))
    normaliser = (scores + scale).logsumexp(-1)
    weights = batch.top_probs * (batch.top_probs > LEAST_PROB)
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-6) * (1 - ARGMAX_SHARE)
    weights[:, 0] += ARGMAX_SHARE
    columns = torch.searchsorted(ranks[:named], batch.top_ranks.contiguous()).clamp(max=named - 1)
    losses: Tensor = weights.sum(-1) * normaliser - (weights * scores.gather(1, columns)).sum(-1)
    return losses.mean()


@torch.no_grad()
def evaluate(model: DraftModel, examples: Sequence[Example], max_tokens: int = 8192) -> tuple[float, float]:
    """(greedy acceptance, sum of min of both laws) over all labelled positions of `examples`, one step ahead."""
    model.eval()
    matched = overlap = count = 0.0
    head_size = model.shape.head_size
    at = 0
    by_length = sorted(examples, key=lambda example: len(example.ranks))
    while at < len(by_length):
        rows = max(1, max_tokens // len(by_length[min(at + 32, len(by_length) - 1)].ranks))
        batch = collate(by_length[at : at + rows])
        at += rows
        scores = model(batch.ranks)[batch.labelled] @ model.table[:head_size].t()
        matched += float((scores.argmax(-1) == batch.top_ranks[:, 0]).sum())
        drafted = scores.softmax(-1).gather(1, batch.top_ranks.clamp(max=head_size - 1)) * (batch.top_ranks < head_size)
        overlap += float(torch.minimum(drafted, batch.top_probs).sum())
        count += len(scores)
    model.train()
    return matched / count, overlap / count


class Training:
    """A run: the model, its optimisers and the number of finished steps, saved together."""

    def __init__(
        self, model: DraftModel, order: Tensor, steps: int, decay: int, matrix_lr: float, table_lr: float
    ) -> None:
        self.model, self.order, self.steps, self.decay, self.done = model, order, steps, decay, 0
        self.seconds = 0.0
        self.muon = Muon(model.matrices, lr=matrix_lr)
        self.table_adam = torch.optim.SparseAdam([model.table], lr=table_lr, betas=(0.9, 0.98))
        self.norm_adam = torch.optim.Adam(model.norms, lr=3 * table_lr, betas=(0.9, 0.98))
        self.optimisers = {"muon": self.muon, "table": self.table_adam, "norms": self.norm_adam}
        self.peaks = [group["lr"] for group in self._groups()]

    def step(self, batch: Batch, ranks: Tensor, named: int) -> float:
        """One update; returns the loss before it, nats. `ranks`, `named`: see `candidates`."""
        rate = min(1.0, (self.done + 1) / WARMUP_STEPS, (self.steps - self.done) / self.decay)
        for group, peak in zip(self._groups(), self.peaks, strict=True):
            group["lr"] = peak * rate
        loss = distillation_loss(self.model, batch, ranks, named)
        self.model.zero_grad(set_to_none=True)
        loss.backward()
        for optimiser in self.optimisers.values():
            optimiser.step()
        self.done += 1
        return float(loss.detach())

    def summary(self, labels: int, greedy: float, overlap: float) -> dict[str, Any]:
        """What the card tells of the run; `greedy` and `overlap`: see `evaluate`."""
        shape = self.model.shape
        own = sum(parameter.numel() for parameter in self.model.parameters())
        return {
            "labelled_positions": labels,
            "steps": self.done,
            "minutes": self.seconds / 60,
            "validation_greedy": greedy,
            "validation_overlap": overlap,
            "parameters": own,
            "shape": asdict(shape),
        }

    def save(self, path: Path) -> None:
        """Write everything that a continued run needs."""
        state = {
            "model": self.model.state_dict(),
            "optimisers": {name: optimiser.state_dict() for name, optimiser in self.optimisers.items()},
            "done": self.done,
            "seconds": self.seconds,
            "order": self.order,
            "shape": asdict(self.model.shape),
        }
        torch.save(state, path.with_suffix(".partial"))
        path.with_suffix(".partial").replace(path)

    def load(self, path: Path) -> None:
        """Continue where `save` was called."""
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for name, optimiser in self.optimisers.items():
            optimiser.load_state_dict(state["optimisers"][name])
        self.done = state["done"]
        self.seconds = state["seconds"]

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimiser in self.optimisers.values() for group in optimiser.param_groups]


def main() -> None:
    """Run the step (see the module's docstring)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, help="directory of the target checkpoint")
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK, help="directory of the training shards")
    parser.add_argument("--out", type=Path, required=True, help="where the checkpoint and the run's state go")
    parser.add_argument("--steps", type=int, required=True, help="steps in all, those of earlier runs included")
    parser.add_argument("--decay", type=int, required=True, help="how many of them, at the end, with a falling rate")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--inner", type=int, default=768)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--head-size", type=int, default=8192)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--matrix-lr", type=float, default=0.01)
    parser.add_argument("--table-lr", type=float, default=0.002)
    parser.add_argument("--evaluate-every", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    shape = DraftShape(
        head_size=arguments.head_size,
        hidden_size=arguments.width,
        intermediate_size=arguments.inner,
        num_layers=arguments.layers,
        num_heads=arguments.heads,
        dropout=arguments.dropout,
    )
    records = read_shards(arguments.work)
    state = arguments.out / "training_state.pt"
    arguments.out.mkdir(parents=True, exist_ok=True)
    order, mass = rank_order(records, shape.vocab_size)
    if state.exists():
        order = torch.load(state, weights_only=True)["order"]
    rank_of = torch.argsort(order)
    examples, validation = split([make_example(record, rank_of) for record in records])
    with safe_open(arguments.target / "model.safetensors", framework="pt") as file:
        target_table = file.get_tensor("model.embed_tokens.weight").float()
    model = DraftModel(shape, initial_table(target_table[order], mass[order], shape.hidden_size))
    run = Training(model, order, arguments.steps, arguments.decay, arguments.matrix_lr, arguments.table_lr)
    if state.exists():
        run.load(state)
    labels = sum(len(example.top_ranks) for example in examples)
    print(f"{len(examples)} examples, {labels} labelled positions, from step {run.done}", flush=True)
    train(run, examples, validation, arguments.batch_tokens, arguments.evaluate_every, arguments.seed, state)
    files = {
        name: (arguments.target / name).read_bytes() for name in TOKENIZER_FILES if (arguments.target / name).exists()
    }
    export(model, order, arguments.out, files)
    summary = run.summary(labels, *evaluate(model, validation))
    (arguments.out / SUMMARY_FILE).write_text(json.dumps(summary, indent=2) + "\n")


def train(
    run: Training,
    examples: Sequence[Example],
    validation: Sequence[Example],
    batch_tokens: int,
    evaluate_every: int,
    seed: int,
    state: Path,
) -> None:
    """Run the remaining steps with progress on standard output, saving and evaluating every `evaluate_every` steps."""
    average = None
    for indices in batches(examples, batch_tokens, seed + run.done):
        if run.done >= run.steps:
            break
        began = time.monotonic()
        generator = torch.manual_seed(seed * 1_000_003 + run.done)  # dropout draws from it too
        batch = collate([examples[index] for index in indices])
        loss = run.step(batch, *candidates(batch, run.model.shape.vocab_size, SAMPLE, generator))
        run.seconds += time.monotonic() - began
        average = loss if average is None else 0.97 * average + 0.03 * loss
        if run.done % 20 == 0:
            print(f"step {run.done}/{run.steps}  loss {average:.3f}  {run.seconds:.0f} s", flush=True)
        if run.done % evaluate_every == 0 or run.done == run.steps:
            run.save(state)
            greedy, overlap = evaluate(run.model, validation)
            print(f"step {run.done}  validation: greedy {greedy:.4f}  overlap {overlap:.4f}", flush=True)


if __name__ == "__main__":
    main()
