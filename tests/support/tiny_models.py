"""Tiny seeded float32 models of several architectures, built from a configuration: nothing is downloaded.

Their weights are random, but large enough that a next token depends on the whole context, so that greedy text does not
fall into a loop at once and a wrong cache shows in the output.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    GenerationMixin,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from speculative.engine.emulated_tokenizer import ByteVocabulary, tokenizer_files

DraftKind = Literal["same", "random", "partial"]
DRAFT_KINDS: tuple[DraftKind, ...] = ("same", "random", "partial")

# Printable ASCII, line feed, and the bytes of Latin letters with accents: incomplete characters happen too.
VOCABULARY = ByteVocabulary((*range(0x20, 0x7F), 0x0A, 0xC3, *range(0xA0, 0xBB)))
VOCAB_SIZE = VOCABULARY.size
EOS_TOKEN_IDS = VOCABULARY.eos_token_ids
CONTEXT_LENGTH = 96
SLIDING_WINDOW = 24

_PARTIAL_NOISE = 0.04  # of a weight's own spread: greedy choices then agree at half to nine tenths of positions
_NEVER = 1 << 30  # an id that no model has
_GAIN = 2.2
_HEAD_GAIN = 4.0  # gives laws of 1 to 3 nats
_COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT_LENGTH,
    "bos_token_id": VOCABULARY.bos_id,
    "eos_token_id": list(EOS_TOKEN_IDS),
    "pad_token_id": EOS_TOKEN_IDS[0],
    "tie_word_embeddings": False,
}
_GROUPED = _COMMON | {"intermediate_size": 64, "num_key_value_heads": 2, "head_dim": 8}

_CONFIGS: dict[str, Callable[[int], PreTrainedConfig]] = {
    "llama": lambda rows: LlamaConfig(vocab_size=rows, **_GROUPED),
    "qwen2": lambda rows: Qwen2Config(vocab_size=rows, **_GROUPED),
    "qwen3": lambda rows: Qwen3Config(vocab_size=rows, **_GROUPED),
    "gpt2": lambda rows: GPT2Config(vocab_size=rows, **_COMMON),
    "gpt_neox": lambda rows: GPTNeoXConfig(vocab_size=rows, intermediate_size=64, **_COMMON),
    "mistral": lambda rows: MistralConfig(vocab_size=rows, sliding_window=SLIDING_WINDOW, **_GROUPED),
    "gemma3": lambda rows: Gemma3TextConfig(
        vocab_size=rows,
        sliding_window=SLIDING_WINDOW,
        layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=8,
        **_GROUPED,
    ),
}
ARCHITECTURES = tuple(_CONFIGS)


@functools.cache
def tiny_model(architecture: str, seed: int = 0, padding: int = 0) -> PreTrainedModel:
    """A model with `padding` embedding rows beyond the vocabulary. It is shared: do not change it."""
    model = AutoModelForCausalLM.from_config(_CONFIGS[architecture](VOCAB_SIZE + padding), dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            _fill(name, parameter, generator)
    return _frozen(model)


@functools.cache
def tiny_draft(architecture: str, kind: DraftKind) -> PreTrainedModel:
    """A draft for `tiny_model(architecture)`: the same model, one that agrees by chance, or one that often agrees."""
    if kind == "same":
        return tiny_model(architecture)
    if kind == "random":
        return tiny_model(architecture, seed=1)
    model = AutoModelForCausalLM.from_config(tiny_model(architecture).config, dtype=torch.float32)
    model.load_state_dict(tiny_model(architecture).state_dict())
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(_PARTIAL_NOISE * parameter.std() * noise)
    return _frozen(model)


def save_tiny(model: PreTrainedModel, directory: Path) -> Path:
    """Writes weights, configuration and tokenizer, so that `directory` loads like any checkpoint."""
    model.save_pretrained(directory)
    for name, content in tokenizer_files(VOCABULARY).items():
        (directory / name).write_bytes(content)
    return directory


def generate_greedily(
    model: PreTrainedModel, prompt: Sequence[int], max_new_tokens: int, *, end: bool = True
) -> list[int]:
    """What transformers' own `generate` answers: new tokens only, up to an end-of-sequence token unless `end` is False.

    Padding rows never come out.
    """
    padding = list(range(VOCAB_SIZE, model.config.vocab_size))
    settings = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        eos_token_id=list(EOS_TOKEN_IDS) if end else [_NEVER],  # None would mean the model's own
        pad_token_id=EOS_TOKEN_IDS[0],
        suppress_tokens=padding or None,
    )
    ids = torch.tensor([list(prompt)])
    answer = cast("GenerationMixin", model).generate(
        ids, attention_mask=torch.ones_like(ids), generation_config=settings
    )
    tokens: list[int] = answer[0, len(prompt) :].tolist()
    return tokens


def _fill(name: str, parameter: torch.Tensor, generator: torch.Generator) -> None:
    """Matrices keep the size of what passes through them, times a gain; norms stay near 1, biases small."""
    noise = torch.randn(parameter.shape, generator=generator)
    if parameter.dim() == 1:
        near_one = name.endswith("weight") and float(parameter.mean()) > 0.5
        parameter.copy_(0.1 * noise + (1.0 if near_one else 0.0))
    elif "embed_tokens" in name or "embed_in" in name or "wte" in name or "wpe" in name:
        parameter.copy_(0.5 * noise)
    else:
        gain = _HEAD_GAIN if name.startswith(("lm_head", "embed_out")) else _GAIN
        parameter.copy_(gain * noise / min(parameter.shape) ** 0.5)


def _frozen(model: PreTrainedModel) -> PreTrainedModel:
    model.eval()
    model.requires_grad_(False)
    return model
