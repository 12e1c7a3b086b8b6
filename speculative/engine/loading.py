"""From the name of a model to a runner and its tokenizer's files. Imports torch only for models that need it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from speculative.engine.interface import Runner

Role = Literal["target", "draft"]


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """How to load a model; an emulated one ignores what concerns hardware."""

    device: str = "auto"
    """As torch names it; "auto" is the first GPU if there is one, else the CPU."""
    dtype: str = "auto"
    """As torch names it; "auto" is bfloat16 on a GPU and float32 on the CPU."""
    threads: int = 0
    """CPU threads of torch; 0 leaves its default."""
    cache_tokens: int = 0
    """Room for keys and values, in tokens over all sessions; 0 takes a share of the free memory."""
    max_batch_tokens: int = 512
    """Most tokens in a step."""
    block_tokens: int = 32
    """Tokens in a block of that room."""
    pack_weights: bool = True
    """On the CPU, keep the weights in a second, faster order too, where memory allows (cpu_linear.py)."""
    attention: str = "auto"
    """"bucketed" (torch's own), "flash", or "auto": flash on a GPU that has it."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A runner, and the files of its tokenizer by name."""

    runner: Runner
    tokenizer_files: Mapping[str, bytes]


def load(model: str, settings: LoadSettings, role: Role) -> LoadedModel:
    """Loads `model`: a local directory, a hub id, "demo", or "emulated:PROFILE".

    Raises ModelLoadError, which says why and what to do.
    """
    if model.startswith("emulated:"):
        from speculative.engine.emulated import make_emulated

        runner, tokenizer_files = make_emulated(model.removeprefix("emulated:"), model)
        return LoadedModel(runner, tokenizer_files)

    from speculative.engine.checkpoint import load_checkpoint

    if model == "demo":
        from speculative.engine.demo_model import demo_directory

        return load_checkpoint(str(demo_directory(role)), "demo", settings)
    return load_checkpoint(model, model, settings)
