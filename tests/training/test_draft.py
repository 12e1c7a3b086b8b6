"""The distilled draft learns, and what is exported is what was trained."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from training.draft import DRAFT_IDS_FILE, DraftModel, DraftShape, export, initial_table
from training.shards import Record
from training.train import (
    Example,
    Training,
    batches,
    candidates,
    collate,
    distillation_loss,
    evaluate,
    make_example,
    orthogonalise,
    rank_order,
    split,
)

SHAPE = DraftShape(vocab_size=64, head_size=24, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=4)


def _cycle_records(count: int = 24) -> list[Record]:
    """A law that can be learnt: from each of 20 ids to the next, with a little mass on the one after."""
    records = []
    for start in range(count):
        ids = ((np.arange(20) * 3 + start * 3) % 60).astype(np.uint16)
        top_ids = np.stack([ids[4:], (ids[4:] + 3) % 60], axis=1).astype(np.uint16)
        top_probs = np.tile(np.array([0.9, 0.1], dtype=np.float16), (16, 1))
        records.append(Record(ids[:4], ids[4:], top_ids, top_probs, 0.0))
    return records


@pytest.fixture
def toy() -> tuple[Training, list[Example]]:
    torch.manual_seed(0)
    records = _cycle_records()
    order, mass = rank_order(records, SHAPE.vocab_size)
    rank_of = torch.argsort(order)
    model = DraftModel(SHAPE, initial_table(torch.randn(64, 48)[order], mass[order], SHAPE.hidden_size))
    examples = [make_example(record, rank_of) for record in records]
    return Training(model, order, steps=60, decay=40, matrix_lr=0.02, table_lr=0.01), examples


def test_ids_are_ranked_by_the_mass_that_the_target_gives_them() -> None:
    order, mass = rank_order(_cycle_records(), 64)
    assert mass[order].diff().max() <= 0
    assert set(order[:20].tolist()) == set(range(0, 60, 3))


def test_an_example_pairs_each_position_with_the_law_of_the_next_token() -> None:
    record = _cycle_records(1)[0]
    example = make_example(record, torch.arange(64))
    batch = collate([example])
    last_prompt_token = len(record.prompt) - 1
    assert batch.labelled[0].nonzero()[:, 0].tolist() == list(range(last_prompt_token, 19))
    assert batch.ranks[0, last_prompt_token + 1] == batch.top_ranks[0, 0]


def test_training_learns_a_simple_law(toy: tuple[Training, list[Example]]) -> None:
    run, examples = toy
    before, overlap_before = evaluate(run.model, examples)
    stream = batches(examples, max_tokens=240, seed=0)
    drawing = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(60):
        batch = collate([examples[index] for index in next(stream)])
        losses.append(run.step(batch, *candidates(batch, SHAPE.vocab_size, 8, drawing)))
    greedy, overlap = evaluate(run.model, examples)
    assert losses[-1] < 0.5 * losses[0]
    assert before < 0.5
    assert greedy > 0.95
    assert overlap > 3 * overlap_before


def test_a_resumed_run_equals_an_uninterrupted_one(toy: tuple[Training, list[Example]], tmp_path: Path) -> None:
    run, examples = toy
    batch = collate(examples[:8])
    chosen = candidates(batch, SHAPE.vocab_size, 8, torch.Generator().manual_seed(0))
    run.step(batch, *chosen)
    run.save(tmp_path / "state.pt")
    resumed = Training(DraftModel(SHAPE, torch.zeros(64, 32)), run.order, 60, 40, 0.02, 0.01)
    resumed.load(tmp_path / "state.pt")
    assert run.step(batch, *chosen) == resumed.step(batch, *chosen)
    for one, other in zip(run.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_loss_is_the_cross_entropy_when_all_ids_are_scored(toy: tuple[Training, list[Example]]) -> None:
    run, examples = toy
    batch = collate(examples[:2])
    with torch.no_grad():
        run.model.final_norm.normal_(generator=torch.Generator().manual_seed(0))
    named = torch.unique(batch.top_ranks)
    others = torch.tensor([rank for rank in range(SHAPE.vocab_size) if rank not in named])
    loss = distillation_loss(run.model, batch, torch.cat((named, others)), len(named))
    law = (run.model(batch.ranks)[batch.labelled] @ run.model.table.t()).log_softmax(-1)
    chosen = law.gather(1, batch.top_ranks)
    expected = -(0.25 * chosen[:, 0] + 0.75 * (batch.top_probs * chosen).sum(-1)).mean()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), abs=2e-3)


def test_sampled_ids_stand_for_all_ids_that_are_not_named(toy: tuple[Training, list[Example]]) -> None:
    run, examples = toy
    batch = collate(examples[:2])
    drawing = torch.Generator().manual_seed(0)
    losses = [
        float(distillation_loss(run.model, batch, *candidates(batch, SHAPE.vocab_size, 16, drawing)).detach())
        for _ in range(40)
    ]
    named = torch.unique(batch.top_ranks)
    others = torch.tensor([rank for rank in range(SHAPE.vocab_size) if rank not in named])
    exact = float(distillation_loss(run.model, batch, torch.cat((named, others)), len(named)).detach())
    assert sum(losses) / len(losses) == pytest.approx(exact, rel=0.05)


def test_every_epoch_sees_every_example_within_the_token_limit(toy: tuple[Training, list[Example]]) -> None:
    _, examples = toy
    stream = batches(examples, max_tokens=100, seed=3)
    seen: list[int] = []
    while len(seen) < len(examples):
        chosen = next(stream)
        assert collate([examples[index] for index in chosen]).ranks.numel() <= 100
        seen += chosen
    assert sorted(seen) == list(range(len(examples)))


def test_validation_examples_are_not_trained_on(toy: tuple[Training, list[Example]]) -> None:
    _, examples = toy
    numbered = [replace(example, top_probs=torch.full((1, 1), float(i))) for i, example in enumerate(examples * 3)]
    kept, validation = ({float(example.top_probs[0, 0]) for example in part} for part in split(numbered))
    assert validation == {0.0, 25.0, 50.0}
    assert kept == {float(i) for i in range(len(numbered))} - validation


def test_orthogonalised_updates_have_singular_values_near_one() -> None:
    torch.manual_seed(0)
    for shape in ((16, 48), (48, 16), (32, 32)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
        assert values.min() > 0.3
        assert values.max() < 1.4


def test_the_exported_checkpoint_is_a_plain_llama_with_the_same_scores(
    toy: tuple[Training, list[Example]], tmp_path: Path
) -> None:
    run, examples = toy
    batch = collate(examples[:8])
    run.step(batch, *candidates(batch, SHAPE.vocab_size, 8, torch.Generator().manual_seed(0)))
    export(run.model, run.order, tmp_path, {"tokenizer.json": b"{}"})
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.dtype == torch.float32
    token_ids = torch.tensor([[3, 60, 9, 12, 30]])
    with torch.no_grad():
        expected = run.model(torch.argsort(run.order)[token_ids]) @ run.model.table.t()
        scores = loaded(token_ids).logits[..., run.order]
    assert torch.allclose(scores, expected, atol=0.05)
    head_ids = json.loads((tmp_path / DRAFT_IDS_FILE).read_text())
    assert head_ids == sorted(run.order[: SHAPE.head_size].tolist())
