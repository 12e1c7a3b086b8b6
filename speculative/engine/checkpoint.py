"""Loads a transformers checkpoint into a runner, and refuses what the engine cannot serve rightly."""

import hashlib
import logging
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers.utils.hub import cached_file
from transformers.utils.import_utils import is_flash_attn_2_available

from speculative.engine.attention import ATTENTION_NAME
from speculative.engine.cpu_linear import can_pack, pack_linears
from speculative.engine.fingerprint import read_vocabulary
from speculative.engine.interface import Slice
from speculative.engine.loading import LoadedModel, LoadSettings
from speculative.engine.paged_cache import PagedBlocks, bytes_per_token
from speculative.engine.runner import TransformersRunner
from speculative.errors import ModelLoadError
from speculative.messages import ModelInfo

_log = logging.getLogger(__name__)

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)
_LAYER_TYPES = {"full_attention", "sliding_attention"}
_MEMORY_SHARE = 0.9  # of free GPU memory, for keys and values
_HOST_MEMORY_SHARE = 0.25  # of free host memory
_HOST_CACHE_TOKENS = 32_768
_CHECK_TOKENS = 12
_PATH_STARTS = ("/", ".", "~")
"""What no hub id begins with."""


def load_checkpoint(path: str, name: str, settings: LoadSettings) -> LoadedModel:
    """Loads the checkpoint at `path` (directory or hub id)."""
    started = time.monotonic()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    config = _read_config(path)
    device = _device(settings.device)
    model = _read_model(path, device, _dtype(settings.dtype, device))
    tokenizer_files = _read_tokenizer(path)
    runner = make_runner(model, tokenizer_files["tokenizer.json"], name, _revision(path, config), settings)
    _log.info("loaded %s on %s in %.1f s", name, device, time.monotonic() - started)
    return LoadedModel(runner, tokenizer_files)


def make_runner(
    model: PreTrainedModel, tokenizer_json: bytes, name: str, revision: str, settings: LoadSettings
) -> TransformersRunner:
    """Puts a model on the paged cache (changing its attention) and checks that steps give its own logits."""
    config = model.config.get_text_config(decoder=True)
    eos_token_ids = _eos_token_ids(model)
    vocabulary = read_vocabulary(tokenizer_json)
    bucketed = _bucketed(settings.attention, model.device)
    blocks = _make_blocks(config, settings, model.device, model.dtype)
    info = ModelInfo(
        name=name,
        revision=revision,
        vocab_size=min(vocabulary.size, config.vocab_size),
        vocab_fingerprint=vocabulary.fingerprint(),
        context_length=min(_context_length(config), blocks.num_blocks * blocks.block_tokens),
        eos_token_ids=eos_token_ids,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
    )
    reference = _reference_logits(model)
    model.set_attn_implementation(ATTENTION_NAME if bucketed else "flash_attention_2")
    if settings.pack_weights and can_pack(model):
        pack_linears(model)
    runner = TransformersRunner(model, blocks, info, bucketed=bucketed)
    _check_rollback(runner, reference, model.dtype)
    return runner


def _read_config(path: str) -> PreTrainedConfig:
    if path.startswith(_PATH_STARTS) and not Path(path).is_dir():
        raise ModelLoadError(f"{path}: no such directory")
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(path, trust_remote_code=False).get_text_config(
            decoder=True
        )
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: no model configuration can be read: {error}") from error
    if config.is_encoder_decoder:
        raise ModelLoadError(f"{path}: {config.model_type} is an encoder-decoder; only decoder-only models are served")
    foreign = set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES
    if foreign:
        raise ModelLoadError(
            f"{path}: {config.model_type} has layers of type {', '.join(sorted(foreign))}, whose state cannot "
            "be rolled back when draft tokens are rejected; only attention layers are served"
        )
    return config


def _read_model(path: str, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    loader: Any = AutoModelForCausalLM  # its annotations do not know of output_loading_info
    model: PreTrainedModel
    try:
        model, report = loader.from_pretrained(
            path,
            dtype=dtype,
            trust_remote_code=False,
            use_safetensors=True,
            attn_implementation="sdpa",
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise ModelLoadError(f"{path}: the model cannot be loaded: {error}") from error
    if missing := sorted(report["missing_keys"]):
        raise ModelLoadError(f"{path}: the checkpoint lacks {len(missing)} tensors, the first is {missing[0]}")
    if model._is_stateful:
        raise ModelLoadError(
            f"{path}: {model.config.model_type} keeps a recurrent state, which cannot be rolled back when draft tokens "
            "are rejected; only attention models are served"
        )
    if not model._can_set_attn_implementation():
        raise ModelLoadError(f"{path}: {model.config.model_type} has an attention of its own that cannot be replaced")
    model.eval().requires_grad_(False)
    model.to(device)  # type: ignore[arg-type]
    return model


def _read_tokenizer(path: str) -> dict[str, bytes]:
    """The tokenizer's files as they are; a tokenizer without a tokenizer.json is converted."""
    files = {}
    for file_name in _TOKENIZER_FILES:
        found = cached_file(path, file_name, _raise_exceptions_for_missing_entries=False)
        if found is not None:
            files[file_name] = Path(found).read_bytes()
    if "tokenizer.json" in files:
        return files
    try:
        with tempfile.TemporaryDirectory() as directory:
            AutoTokenizer.from_pretrained(path, trust_remote_code=False).save_pretrained(directory)
            return files | {
                file_name: Path(directory, file_name).read_bytes()
                for file_name in _TOKENIZER_FILES
                if Path(directory, file_name).exists()
            }
    except (OSError, ValueError, ImportError) as error:
        raise ModelLoadError(f"{path}: no tokenizer can be read: {error}") from error


def _eos_token_ids(model: PreTrainedModel) -> tuple[int, ...]:
    eos: int | list[int] | None = getattr(model.generation_config, "eos_token_id", None)
    if eos is None:
        eos = model.config.eos_token_id
    if eos is None:
        return ()
    return (eos,) if isinstance(eos, int) else tuple(eos)


def _context_length(config: PreTrainedConfig) -> int:
    for name in ("max_position_embeddings", "n_positions"):
        if length := getattr(config, name, None):
            return int(length)
    raise ModelLoadError(f"{config.model_type}: the configuration does not tell the length of the context")


def _revision(path: str, config: PreTrainedConfig) -> str:
    """The hub's commit, else a hash over the configuration and the weight files' headers and sizes."""
    if commit := getattr(config, "_commit_hash", None):
        return str(commit)
    digest = hashlib.sha256(config.to_json_string(use_diff=False).encode())
    for file in sorted(Path(path).glob("*.safetensors")):
        with file.open("rb") as content:
            digest.update(content.read(int.from_bytes(content.read(8), "little")))
        digest.update(f"{file.name} {file.stat().st_size}".encode())
    return digest.hexdigest()[:16]


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ModelLoadError(f"device {name!r} cannot be used: {error}") from error


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ModelLoadError(f"dtype {name!r} is not one of torch's floating-point types")
    return dtype


def _bucketed(attention: str, device: torch.device) -> bool:
    """Whether to use bucketed attention rather than flash kernels."""
    if attention not in ("auto", "bucketed", "flash"):
        raise ModelLoadError(f"attention {attention!r} is not one of auto, bucketed, flash")
    flash = device.type == "cuda" and is_flash_attn_2_available()
    if attention == "flash" and not flash:
        raise ModelLoadError("attention 'flash' needs a CUDA GPU and the package flash-attn")
    return attention == "bucketed" or not flash


def _make_blocks(
    config: PreTrainedConfig, settings: LoadSettings, device: torch.device, dtype: torch.dtype
) -> PagedBlocks:
    tokens = settings.cache_tokens or _free_cache_tokens(config, device, dtype)
    num_blocks = tokens // settings.block_tokens
    if num_blocks < 1:
        raise ModelLoadError(f"no room for keys and values: {tokens} tokens are less than one block")
    try:
        return PagedBlocks(
            config,
            num_blocks=num_blocks,
            block_tokens=settings.block_tokens,
            max_batch_tokens=settings.max_batch_tokens,
            device=device,
            dtype=dtype,
        )
    except MemoryError as error:
        raise ModelLoadError(f"keys and values of {tokens} tokens do not fit the free memory: {error}") from error


def _free_cache_tokens(config: PreTrainedConfig, device: torch.device, dtype: torch.dtype) -> int:
    per_token = bytes_per_token(config, dtype)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * _MEMORY_SHARE * 0.8) // per_token
    tokens = int(psutil.virtual_memory().available * _HOST_MEMORY_SHARE) // per_token
    return min(tokens, max(_HOST_CACHE_TOKENS, _context_length(config)))


def _check_ids(model: PreTrainedModel) -> list[int]:
    vocab_size = model.config.get_text_config().vocab_size
    return [(7 * i + 3) % vocab_size for i in range(_CHECK_TOKENS)]


@torch.inference_mode()
def _reference_logits(model: PreTrainedModel) -> tuple[list[int], torch.Tensor]:
    """Some ids and the model's own logits of them, without any cache."""
    ids = _check_ids(model)
    return ids, model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits[0]


def _check_rollback(runner: TransformersRunner, reference: tuple[list[int], torch.Tensor], dtype: torch.dtype) -> None:
    """Feeds the reference ids in pieces, with a wrong chunk rolled back in between, and compares the logits.

    Whatever a model does that the paged cache does not see (a state, positions of its own) shows here.
    """
    ids, expected = reference
    half = len(ids) // 2
    wrong = [(token + 1) % runner.info.vocab_size for token in ids[half:]]
    runner.blocks.attach("check", ids)
    try:
        if not runner.blocks.reserve("check", 0, len(ids)):
            raise ModelLoadError("the cache has no room for a dozen tokens")
        runner.logits([Slice("check", ids[:half] + wrong, 0, 1, ())])
        actual = torch.cat(
            [
                runner.logits([Slice("check", ids[start:stop], start, stop - start, ids[:start])])
                for start, stop in ((half, half + 2), (half + 2, len(ids)))
            ]
        )
    except (TypeError, ValueError, AttributeError, RuntimeError, KeyError) as error:
        raise ModelLoadError(f"the model does not run on the paged cache: {error}") from error
    finally:
        runner.blocks.release("check")
    deviation = (actual - expected[half:]).float().abs().max().item()
    scale = expected.float().abs().max().item()
    tolerance = 1e-3 if dtype in (torch.float32, torch.float64) else 0.1
    if not deviation <= tolerance * max(scale, 1.0):
        raise ModelLoadError(
            f"the model's logits change by {deviation:.3g} when a chunk is rolled back; it cannot be served"
        )
