"""The batched forward that produces the training data says what the plain model says."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from training.generate import END_OF_TURN, Generation, Prompt, make_batches
from training.target import TargetModel


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[LlamaForCausalLM, Path]:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    directory = tmp_path_factory.mktemp("target")
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(directory)
    return model, directory


def test_answers_and_laws_of_a_ragged_batch_are_those_of_the_plain_model(plain: tuple[LlamaForCausalLM, Path]) -> None:
    model, directory = plain
    prefix = [5, 6, 7]
    prompts = [Prompt([11, 12, 13, 14, 15], 0.0), Prompt([21], 0.0), Prompt([31, 32], 1.0), Prompt([41, 42, 43], 0.0)]
    with torch.inference_mode():
        records = Generation(TargetModel(directory), prefix, prompts, max_new=12, seed=0).run()
    for prompt, record in zip(prompts, records, strict=True):
        assert record.prompt.tolist() == prefix + prompt.token_ids
        sequence = torch.tensor([record.prompt.tolist() + record.response.tolist()])
        with torch.no_grad():
            law = model(sequence).logits[0, len(record.prompt) - 1 : -1].softmax(-1)
        stored = torch.from_numpy(record.top_probs.astype("float32"))
        ids = torch.from_numpy(record.top_ids.astype("int64"))
        assert torch.allclose(law.gather(1, ids), stored, atol=1e-3)
        if prompt.temperature == 0:
            assert record.response.tolist() == law.argmax(-1).tolist()
        ended = record.response.tolist().count(END_OF_TURN)
        assert len(record.response) == 12 or (ended == 1 and record.response[-1] == END_OF_TURN)


def test_the_same_seed_gives_the_same_answers(plain: tuple[LlamaForCausalLM, Path]) -> None:
    _, directory = plain
    model = TargetModel(directory)
    prompts = [Prompt([index + 10], 1.0) for index in range(6)]
    with torch.inference_mode():
        first, second, other = (
            [record.response.tolist() for record in Generation(model, [5], prompts, 8, seed).run()]
            for seed in (1, 1, 2)
        )
    assert first == second
    assert first != other


def test_every_prompt_is_in_one_batch() -> None:
    prompts = [Prompt([1] * (1 + index % 9), 0.0) for index in range(50)]
    made = make_batches(prompts, batch_size=4)
    assert sum(len(batch) for batch in made) == 50
    assert max(len(batch) for batch in made) == 4
