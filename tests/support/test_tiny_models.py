"""The tiny models are what the equivalence tests take them for."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from speculative.engine.fingerprint import vocab_fingerprint
from tests.support.tiny_models import (
    ARCHITECTURES,
    CONTEXT_LENGTH,
    EOS_TOKEN_IDS,
    SLIDING_WINDOW,
    VOCAB_SIZE,
    generate_greedily,
    tiny_draft,
    tiny_model,
)

PROMPT_LEN = 8


def prompts(number: int, length: int) -> torch.Tensor:
    """Token ids [number, length], without special tokens."""
    return torch.randint(0, VOCAB_SIZE - 4, (number, length), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_text_varies(architecture: str) -> None:
    [prompt] = prompts(1, PROMPT_LEN).tolist()
    answer = generate_greedily(tiny_model(architecture), prompt, CONTEXT_LENGTH - PROMPT_LEN, end=False)
    assert len(answer) == CONTEXT_LENGTH - PROMPT_LEN
    assert len(set(answer)) >= 10


def test_greedy_text_ends_at_the_end_of_sequence() -> None:
    answers = [generate_greedily(tiny_model("llama"), prompt, 40) for prompt in prompts(4, PROMPT_LEN).tolist()]
    early = [answer for answer in answers if len(answer) < 40]
    assert early
    assert all(answer[-1] in EOS_TOKEN_IDS for answer in early)


def test_padding_rows_never_come_out() -> None:
    [prompt] = prompts(1, PROMPT_LEN).tolist()
    assert max(generate_greedily(tiny_model("llama", padding=32), prompt, 40)) < VOCAB_SIZE


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_token_depends_on_tokens_beyond_the_sliding_window(architecture: str) -> None:
    ids = prompts(16, SLIDING_WINDOW * 3)
    changed = ids.clone()
    changed[:, 0] = (ids[:, 0] + 1) % 90
    with torch.inference_mode():
        difference = tiny_model(architecture)(ids).logits[:, -1] - tiny_model(architecture)(changed).logits[:, -1]
    if architecture != "mistral":  # two layers of windows see no further than two windows
        assert difference.abs().amax(dim=-1).min() > 1e-3
    else:
        assert difference.abs().max() == 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_drafts_agree_always_sometimes_and_by_chance(architecture: str) -> None:
    ids = prompts(8, 64)
    with torch.inference_mode():
        target = tiny_model(architecture)(ids).logits.argmax(-1)
        same, random, partial = (
            float((tiny_draft(architecture, kind)(ids).logits.argmax(-1) == target).float().mean())
            for kind in ("same", "random", "partial")
        )
    assert same == 1.0
    assert random < 0.05
    assert 0.4 < partial < 0.95


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_saved_model_loads_from_its_directory(architecture: str, tiny_checkpoint: Callable[..., Path]) -> None:
    directory = tiny_checkpoint(architecture)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(directory)
    ids = prompts(2, 16)
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, tiny_model(architecture)(ids).logits)
    assert model.dtype == torch.float32
    assert tuple(model.generation_config.eos_token_id) == EOS_TOKEN_IDS


def test_the_tokenizer_has_as_many_ids_as_the_model_has_rows(tiny_checkpoint: Callable[..., Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint("llama"))
    assert len(tokenizer) == VOCAB_SIZE == tiny_model("llama").config.vocab_size
    ids = tokenizer("Hello, wörld!\n")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "Hello, wörld!\n"
    assert tokenizer.eos_token_id in EOS_TOKEN_IDS


def test_padding_rows_leave_the_vocabulary_as_it_is(tiny_checkpoint: Callable[..., Path]) -> None:
    plain, padded = tiny_checkpoint("llama"), tiny_checkpoint("llama", padding=32)
    prints = {vocab_fingerprint((directory / "tokenizer.json").read_bytes()) for directory in (plain, padded)}
    assert len(prints) == 1
    assert tiny_model("llama", padding=32)(prompts(1, 1)).logits.shape[-1] == VOCAB_SIZE + 32
