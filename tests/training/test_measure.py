"""What is measured of a draft, on tiny models whose figures are known."""

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from training.draft import DRAFT_IDS_FILE
from training.generate import Generation, Prompt
from training.measure import Answer, Scorer, greedy_answers, sampled_answers, summarise, summarise_kinds
from training.shards import Record
from training.target import TargetModel

PREFIX = [5, 6, 7]
PROMPTS = [[11, 12, 13], [21, 22], [31]]
KINDS = {(*PREFIX, *prompt): kind for prompt, kind in zip(PROMPTS, ("chat", "code", "chat"), strict=True)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(6)
    config = LlamaConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    directory = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory


def _records(model: Path, temperature: float) -> list[Record]:
    prompts = [Prompt(prompt, temperature) for prompt in PROMPTS]
    with torch.inference_mode():
        return Generation(TargetModel(model), PREFIX, prompts, max_new=24, seed=0).run()


@torch.inference_mode()
def _greedy(model: Path, draft: Scorer) -> list[Answer]:
    return list(greedy_answers(_records(model, 0.0), KINDS, draft))


def test_a_draft_that_is_the_target_always_stands(model: Path) -> None:
    answers = _greedy(model, Scorer(model, restricted=False))
    summary = summarise(answers, "greedy")
    assert summary["acceptance"] == 1.0
    assert summary["tokens_a_round_alone_chunk_4"] == 5.0
    assert summary["tokens_a_round_alone_chunk_8"] == 9.0
    assert summary["acceptance_by_position"] == [1.0] * 8


def test_the_law_of_the_same_model_stands_under_both_rules(model: Path) -> None:
    same = Scorer(model, restricted=False)
    with torch.inference_mode():
        answers = list(sampled_answers(_records(model, 1.0), KINDS, same, same))
    for rule in ("rejection", "coupled"):
        assert summarise(answers, rule)["acceptance"] == pytest.approx(1.0, abs=1e-4)


def test_an_id_outside_the_drafts_list_never_stands(model: Path) -> None:
    banned = int(_records(model, 0.0)[0].response[0])
    (model / DRAFT_IDS_FILE).write_text(json.dumps([token for token in range(61) if token != banned]))
    restricted = Scorer(model, restricted=True)
    answers = _greedy(model, restricted)
    for answer in answers:
        drawn = answer.token_ids[answer.prompt_len :]
        assert [bool(stands) for stands in answer.stands["greedy"]] == [token != banned for token in drawn]


def test_figures_by_kind_cover_each_answer_once(model: Path) -> None:
    answers = _greedy(model, Scorer(model, restricted=False))
    by_kind = summarise_kinds(answers, "greedy")
    assert set(by_kind) == {"chat", "code"}
    total = sum(float(torch.tensor(summary["positions"])) for summary in by_kind.values())
    assert total == sum(len(answer.token_ids) - answer.prompt_len for answer in answers)
