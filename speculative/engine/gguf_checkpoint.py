"""Turns the demo model's GGUF file into a checkpoint that transformers loads: config, weights (float32), tokenizer.

transformers can read GGUF itself (`gguf_file=`), but parses the file four times in pure Python, reports no progress,
and loses this tokenizer's rule that every digit stands alone. So the file is read here, once, with ggml's own `gguf`
package (reader, dequantisation, tensor names); a test compares the weights with transformers' bit for bit.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import MODEL_ARCH, GGUFReader, TokenType, dequantize, get_tensor_name_map
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from speculative.engine.demo_model import WEIGHTS, Advance
from speculative.errors import ModelLoadError

Weights = dict[str, NDArray[np.float32]]

_LAYER_TENSORS = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
_COPIED = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


class GgufCheckpoint:
    """A Llama model with a byte-level BPE tokenizer, in a GGUF file."""

    def __init__(self, path: Path) -> None:
        """Parses the header. Raises ModelLoadError if the file is not GGUF or holds another kind of model."""
        try:
            self._reader = GGUFReader(path)
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise ModelLoadError(f"{path} is not a GGUF file: {error}") from error
        kind = tuple(self._field(name) for name in ("general.architecture", *_TOKENIZER_KIND))
        if kind != ("llama", *_TOKENIZER_KIND.values()):
            raise ModelLoadError(f"{path} holds {kind}, not a Llama model with the SmolLM2 tokenizer")

    def write(self, directory: Path, advance: Advance) -> None:
        """Writes the checkpoint's files; `advance` is told of each tensor in bytes."""
        config = self.config()
        _write_json(directory / "config.json", config)
        generation = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        _write_json(directory / "generation_config.json", generation)
        self.tokenizer().save(str(directory / "tokenizer.json"))
        _write_json(directory / "tokenizer_config.json", self.tokenizer_config())
        (directory / "chat_template.jinja").write_text(self._field("tokenizer.chat_template"), "utf-8")
        save_file(self.weights(advance), directory / WEIGHTS, metadata={"format": "pt"})

    @property
    def weight_bytes(self) -> int:
        """Size of all weights as float32."""
        return 4 * sum(int(tensor.n_elements) for tensor in self._reader.tensors)

    def config(self) -> dict[str, Any]:
        """The content of config.json."""
        heads = self._field("llama.attention.head_count")
        hidden = self._field("llama.embedding_length")
        rope = {"rope_type": "default", "rope_theta": self._field("llama.rope.freq_base")}
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": len(self._field("tokenizer.ggml.tokens")),
            "hidden_size": hidden,
            "intermediate_size": self._field("llama.feed_forward_length"),
            "num_hidden_layers": self._field("llama.block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._field("llama.attention.head_count_kv"),
            "head_dim": hidden // heads,
            "hidden_act": "silu",
            "rms_norm_eps": self._field("llama.attention.layer_norm_rms_epsilon"),
            "rope_parameters": rope,
            "max_position_embeddings": self._field("llama.context_length"),
            "tie_word_embeddings": not any(tensor.name == "output.weight" for tensor in self._reader.tensors),
            "dtype": "float32",
            **self._special_ids(),
        }

    def weights(self, advance: Advance) -> Weights:
        """All weights under transformers' names; `advance` is told of each in bytes."""
        config = self.config()
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        weights: Weights = {}
        for name, gguf_name in self._names(config):
            tensor = tensors.pop(gguf_name, None)
            if tensor is None:
                raise ModelLoadError(f"the GGUF file has no tensor {gguf_name}")
            values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
            projection = name.split(".")[-2]
            weights[name] = _halves(values, heads[projection]) if projection in heads else values
            advance(weights[name].nbytes)
        if tensors:
            raise ModelLoadError(f"the GGUF file has tensors that a Llama model does not: {sorted(tensors)}")
        return weights

    def tokenizer(self) -> Tokenizer:
        """The tokenizer. Every numeric character is a token of its own (llama.cpp's "smollm"), then GPT-2's rules."""
        tokens: list[str] = self._field("tokenizer.ggml.tokens")
        merges = [tuple(merge.split(" ")) for merge in self._field("tokenizer.ggml.merges")]
        tokenizer = Tokenizer(BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
        tokenizer.decoder = decoders.ByteLevel()
        kinds = self._field("tokenizer.ggml.token_type")
        special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == TokenType.CONTROL]
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
        return tokenizer

    def tokenizer_config(self) -> dict[str, Any]:
        """The content of tokenizer_config.json."""
        tokens: list[str] = self._field("tokenizer.ggml.tokens")
        names = {name.removesuffix("_id"): tokens[index] for name, index in self._special_ids().items()}
        limit = self._field("llama.context_length")
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": limit,
            "clean_up_tokenization_spaces": False,
            **names,
        }

    def _special_ids(self) -> dict[str, int]:
        return {name: self._field(f"tokenizer.ggml.{key}") for name, key in _SPECIAL.items()}

    def _field(self, name: str) -> Any:  # noqa: ANN401  # the type depends on the name
        field = self._reader.get_field(name)
        if field is None:
            raise ModelLoadError(f"the GGUF file does not say {name}")
        return field.contents()

    def _names(self, config: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Pairs of names of every tensor: transformers' and GGUF's."""
        layers = range(config["num_hidden_layers"])
        names = ["model.embed_tokens", *(f"model.layers.{layer}.{part}" for layer in layers for part in _LAYER_TENSORS)]
        names += ["model.norm"] if config["tie_word_embeddings"] else ["model.norm", "lm_head"]
        table = get_tensor_name_map(MODEL_ARCH.LLAMA, len(layers))
        for name in names:
            yield f"{name}.weight", f"{table.get_name(name)}.weight"


_TOKENIZER_KIND = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}
_SPECIAL = {
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "pad_token_id": "padding_token_id",
    "unk_token_id": "unknown_token_id",
}


def truncate(source: Path, directory: Path, num_layers: int) -> None:
    """Writes a checkpoint of the first `num_layers` layers of the one in `source`, with its embedding and head."""
    config = json.loads((source / "config.json").read_text("utf-8"))
    dropped = tuple(f"model.layers.{layer}." for layer in range(num_layers, config["num_hidden_layers"]))
    weights = {name: values for name, values in load_file(source / WEIGHTS).items() if not name.startswith(dropped)}
    for name in _COPIED:
        (directory / name).write_bytes((source / name).read_bytes())
    _write_json(directory / "config.json", config | {"num_hidden_layers": num_layers})
    save_file(weights, directory / WEIGHTS, metadata={"format": "pt"})


def _halves(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Reorders a query or key projection's rows: GGUF pairs neighbours for the rotation, transformers pairs halves.

    `values`: (heads * head_dim, hidden).
    """
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
