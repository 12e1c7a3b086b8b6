"""Tiny models on the engine's paged cache."""

import copy

from transformers import PreTrainedModel

from speculative.engine.checkpoint import make_runner
from speculative.engine.emulated_tokenizer import tokenizer_files
from speculative.engine.loading import LoadSettings
from speculative.engine.runner import TransformersRunner
from tests.support.tiny_models import ARCHITECTURES, VOCABULARY

SERVED = tuple(name for name in ARCHITECTURES if name != "gpt_neox")  # transformers' paged cache cannot run it


def tiny_runner(model: PreTrainedModel, *, cache_tokens: int = 4096, block_tokens: int = 8) -> TransformersRunner:
    """A runner over a copy of the model."""
    settings = LoadSettings(cache_tokens=cache_tokens, block_tokens=block_tokens, device="cpu")
    tokenizer_json = tokenizer_files(VOCABULARY)["tokenizer.json"]
    return make_runner(copy.deepcopy(model), tokenizer_json, "tiny", "0", settings)
