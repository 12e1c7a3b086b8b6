"""Set-up of all tests: no network, and no more threads than the tests have cores for."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

# Before anything imports torch, tokenizers or huggingface_hub: they read these when they are imported.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Saves a tiny model (tiny_models.py) once: `tiny_checkpoint("llama")`, `tiny_checkpoint("llama", "random")`.

    The second argument names a draft for the model; without it the model itself is saved, with `padding` rows more.
    """
    from tests.support import tiny_models

    saved: dict[tuple[str, str | None, int], Path] = {}

    def checkpoint(architecture: str, draft: tiny_models.DraftKind | None = None, *, padding: int = 0) -> Path:
        key = (architecture, draft, padding)
        if key not in saved:
            directory = tmp_path_factory.mktemp(f"{architecture}-{draft or 'target'}")
            if draft is None:
                model = tiny_models.tiny_model(architecture, padding=padding)
            else:
                model = tiny_models.tiny_draft(architecture, draft)
            saved[key] = tiny_models.save_tiny(model, directory)
        return saved[key]

    return checkpoint
