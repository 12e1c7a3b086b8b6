"""Models come from directories, and what cannot be served rightly is refused with a reason."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, FalconMambaConfig, PreTrainedConfig, RecurrentGemmaConfig, T5Config

from speculative.engine.loading import LoadSettings, load
from speculative.errors import ModelLoadError
from tests.support.tiny_models import CONTEXT_LENGTH, EOS_TOKEN_IDS, VOCAB_SIZE, save_tiny, tiny_model
from tests.support.tiny_runners import tiny_runner

SETTINGS = LoadSettings(device="cpu", cache_tokens=1024)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return save_tiny(tiny_model("llama"), tmp_path / "model")


def test_a_directory_is_loaded_with_its_tokenizer(directory: Path) -> None:
    loaded = load(str(directory), SETTINGS, "target")
    info = loaded.runner.info
    assert (info.vocab_size, info.context_length, info.eos_token_ids) == (VOCAB_SIZE, CONTEXT_LENGTH, EOS_TOKEN_IDS)
    assert (info.dtype, info.device) == ("float32", "cpu")
    assert loaded.tokenizer_files["tokenizer.json"] == (directory / "tokenizer.json").read_bytes()


def test_the_revision_names_the_weights(directory: Path, tmp_path: Path) -> None:
    other = save_tiny(tiny_model("qwen2"), tmp_path / "other")
    first, again, second = (load(str(path), SETTINGS, "target").runner.info for path in (directory, directory, other))
    assert first.revision == again.revision != second.revision


def test_padded_vocabularies_match_their_unpadded_twins(directory: Path, tmp_path: Path) -> None:
    padded = save_tiny(tiny_model("llama", padding=16), tmp_path / "padded")
    infos = [load(str(path), SETTINGS, "target").runner.info for path in (directory, padded)]
    assert infos[0].vocab_fingerprint == infos[1].vocab_fingerprint
    assert infos[1].vocab_size == VOCAB_SIZE


def test_the_context_is_no_longer_than_the_memory(directory: Path) -> None:
    settings = LoadSettings(device="cpu", cache_tokens=40, block_tokens=8)
    assert load(str(directory), settings, "target").runner.info.context_length == 40


@pytest.mark.parametrize("path", ["/no/such/model", "./no-such-model", "../no/such/model"])
def test_a_missing_directory_is_named(path: str) -> None:
    with pytest.raises(ModelLoadError) as refused:
        load(path, SETTINGS, "target")
    assert str(refused.value) == f"{path}: no such directory"


@pytest.mark.parametrize(
    ("field", "value"), [("device", "abacus"), ("dtype", "int8"), ("dtype", "nonsense"), ("attention", "spooky")]
)
def test_a_bad_setting_is_named(directory: Path, field: str, value: str) -> None:
    settings = LoadSettings(**{"device": "cpu", "cache_tokens": 1024, field: value})  # type: ignore[arg-type]
    with pytest.raises(ModelLoadError, match=value):
        load(str(directory), settings, "target")


def test_flash_attention_without_a_gpu_is_refused(directory: Path) -> None:
    with pytest.raises(ModelLoadError, match="flash"):
        load(str(directory), LoadSettings(device="cpu", attention="flash"), "target")


def test_corrupt_weights_are_refused(directory: Path) -> None:
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ModelLoadError, match="cannot be loaded"):
        load(str(directory), SETTINGS, "target")


def test_missing_weights_are_refused(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match="cannot be loaded"):
        load(str(directory), SETTINGS, "target")


def test_weights_of_another_shape_are_refused(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"intermediate_size": 128}))
    with pytest.raises(ModelLoadError, match="cannot be loaded"):
        load(str(directory), SETTINGS, "target")


def test_weights_that_lack_a_tensor_are_refused(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(ModelLoadError, match="lacks"):
        load(str(directory), SETTINGS, "target")


RECURRENT: list[PreTrainedConfig] = [
    FalconMambaConfig(vocab_size=VOCAB_SIZE, hidden_size=16, num_hidden_layers=1),
    RecurrentGemmaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        lru_width=16,
    ),
]


@pytest.mark.parametrize("config", RECURRENT, ids=lambda config: config.model_type)
def test_models_that_cannot_roll_back_are_refused(config: PreTrainedConfig, tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = save_tiny(AutoModelForCausalLM.from_config(config), tmp_path / "model")
    with pytest.raises(ModelLoadError, match="rolled back"):
        load(str(path), SETTINGS, "target")


def test_encoder_decoders_are_refused(tmp_path: Path) -> None:
    T5Config(d_model=8, num_layers=1, num_heads=1).save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match="encoder-decoder"):
        load(str(tmp_path), SETTINGS, "target")


def test_an_architecture_that_the_paged_cache_cannot_run_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="does not run on the paged cache"):
        tiny_runner(tiny_model("gpt_neox"))
