"""A minimal batched forward of the target (Llama shape) for producing training data quickly.

The serving engine is built for latency and fairness; this one is built for one thing: many sequences of similar
length, all starting with the same system prompt, at the highest token rate that a few cores give. Invariant: the
law it reports is that of the plain model (float32, no approximation), which `tests/training` checks against
transformers.

Layout of a batch: the shared prefix, then padding, then each row's own tokens, so that all rows end at the same
column. Positions given to the rotary embedding skip the padding.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention, silu

PREFILL_ROWS = 16


@dataclass(frozen=True)
class Layer:
    """The weights of one decoder layer, query, key and value fused: all `[out, in]`."""

    attention_norm: Tensor
    query_key_value: Tensor
    output: Tensor
    mlp_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


class KeyValueCache:
    """Keys and values of a batch, preallocated: `[layers, 2, rows, heads, columns, head_dim]`."""

    def __init__(self, num_layers: int, num_rows: int, num_heads: int, num_columns: int, head_dim: int) -> None:
        self.data = torch.zeros(num_layers, 2, num_rows, num_heads, num_columns, head_dim)

    def keep(self, rows: Tensor, used_columns: int) -> None:
        """Drop all rows but `rows` (ascending); columns from `used_columns` on are unused and not copied."""
        for layer in self.data:
            for part in layer:
                part[: len(rows), :, :used_columns] = part[rows, :, :used_columns]
        self.data = self.data[:, :, : len(rows)]


class TargetModel:
    """A Llama checkpoint directory, loaded for batch generation."""

    def __init__(self, directory: Path) -> None:
        config = json.loads((directory / "config.json").read_text())
        self.hidden_size: int = config["hidden_size"]
        self.num_heads: int = config["num_attention_heads"]
        self.num_kv_heads: int = config["num_key_value_heads"]
        self.head_dim: int = config.get("head_dim") or self.hidden_size // self.num_heads
        self.num_layers: int = config["num_hidden_layers"]
        self.norm_eps: float = config["rms_norm_eps"]
        rope = config.get("rope_parameters") or config
        self.inverse_frequencies = 1.0 / (
            rope["rope_theta"] ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        )
        weights = {name: tensor.float() for name, tensor in load_file(directory / "model.safetensors").items()}
        self.embedding = weights["model.embed_tokens.weight"]
        self.head = self.embedding if config["tie_word_embeddings"] else weights["lm_head.weight"]
        self.final_norm = weights["model.norm.weight"]
        self.layers = [_layer(weights, f"model.layers.{index}.") for index in range(self.num_layers)]

    def new_cache(self, num_rows: int, num_columns: int) -> KeyValueCache:
        """An empty cache for `num_rows` sequences of at most `num_columns` tokens, padding included."""
        return KeyValueCache(self.num_layers, num_rows, self.num_kv_heads, num_columns, self.head_dim)

    def prefill(
        self, cache: KeyValueCache, rows: slice, token_ids: Tensor, start: int, positions: Tensor, visible: Tensor
    ) -> Tensor:
        """Append `token_ids` `[rows, new]` at column `start`; `visible` is `[rows, start + new]` (False for padding).

        Returns the hidden states after the last norm, `[rows, new, hidden]`.
        """
        num_rows, new = token_ids.shape
        end = start + new
        causal = torch.ones(new, end, dtype=torch.bool).tril(start)
        mask = (visible[:, None, None, :end] & causal) | torch.eye(new, end, dtype=torch.bool).roll(start, 1)
        cos, sin = self._rotary(positions)
        hidden = self.embedding[token_ids]
        for layer, (keys, values) in zip(self.layers, cache.data, strict=True):
            query, key, value = self._project(layer, hidden, cos, sin)
            keys[rows, :, start:end] = key.transpose(1, 2)
            values[rows, :, start:end] = value.transpose(1, 2)
            attended = scaled_dot_product_attention(
                query.transpose(1, 2), keys[rows, :, :end], values[rows, :, :end], attn_mask=mask, enable_gqa=True
            )
            hidden = hidden + linear(attended.transpose(1, 2).reshape(num_rows, new, -1), layer.output)
            hidden = hidden + self._mlp(layer, hidden)
        return self._norm(hidden, self.final_norm)

    def decode(self, cache: KeyValueCache, token_ids: Tensor, start: int, positions: Tensor, bias: Tensor) -> Tensor:
        """Append one token per row at column `start`; `bias` `[rows, start + 1]` is -inf on padding, else 0.

        Returns the hidden states after the last norm, `[rows, hidden]`.
        """
        num_rows = len(token_ids)
        groups, head_dim = self.num_heads // self.num_kv_heads, self.head_dim
        flat_bias = bias[:, None].expand(-1, self.num_kv_heads, -1).reshape(num_rows * self.num_kv_heads, 1, start + 1)
        cos, sin = self._rotary(positions[:, None])
        hidden = self.embedding[token_ids][:, None]
        for layer, (keys, values) in zip(self.layers, cache.data, strict=True):
            query, key, value = self._project(layer, hidden, cos, sin)
            keys[:num_rows, :, start] = key[:, 0]
            values[:num_rows, :, start] = value[:, 0]
            flat_query = query.reshape(num_rows * self.num_kv_heads, groups, head_dim) * head_dim**-0.5
            flat_keys = keys[:num_rows].flatten(0, 1)[:, : start + 1]
            flat_values = values[:num_rows].flatten(0, 1)[:, : start + 1]
            weights = torch.baddbmm(flat_bias, flat_query, flat_keys.transpose(1, 2)).softmax(-1)
            attended = torch.bmm(weights, flat_values).reshape(num_rows, 1, -1)
            hidden = hidden + linear(attended, layer.output)
            hidden = hidden + self._mlp(layer, hidden)
        return self._norm(hidden[:, 0], self.final_norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary, `[rows, vocabulary]`; the transposed product is the faster one here."""
        return (self.head @ hidden.t().contiguous()).t().contiguous()

    def _project(self, layer: Layer, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        num_rows, new, _ = hidden.shape
        fused = linear(self._norm(hidden, layer.attention_norm), layer.query_key_value)
        fused = fused.view(num_rows, new, self.num_heads + 2 * self.num_kv_heads, self.head_dim)
        query, key, value = fused.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=2)
        return _rotate(query, cos, sin), _rotate(key, cos, sin), value

    def _mlp(self, layer: Layer, hidden: Tensor) -> Tensor:
        normed = self._norm(hidden, layer.mlp_norm)
        return linear(silu(linear(normed, layer.gate)).mul_(linear(normed, layer.up)), layer.down)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(hidden, weight.shape, weight, self.norm_eps)

    def _rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[..., None].float() * self.inverse_frequencies
        angles = torch.cat((angles, angles), dim=-1)[:, :, None]
        return angles.cos(), angles.sin()


def _layer(weights: dict[str, Tensor], prefix: str) -> Layer:
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    return Layer(
        attention_norm=weights[prefix + "input_layernorm.weight"],
        query_key_value=torch.cat([weights[f"{attention}{name}_proj.weight"] for name in "qkv"]),
        output=weights[attention + "o_proj.weight"],
        mlp_norm=weights[prefix + "post_attention_layernorm.weight"],
        gate=weights[mlp + "gate_proj.weight"],
        up=weights[mlp + "up_proj.weight"],
        down=weights[mlp + "down_proj.weight"],
    )


def _rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat((-second, first), dim=-1) * sin
