"""The draft as it is trained: a small Llama with one tied table, in the target's vocabulary but in its own order of
ids.

Ids are ordered by how much of the target's probability they get in the training data ("ranks"). The head scores
only the first `head_size` ranks, so that it is a plain slice of the table; `export` puts the rows back in the
tokenizer's order and writes a checkpoint that `AutoModelForCausalLM.from_pretrained` loads, with the list of the
head's ids beside it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import dropout, embedding, linear, rms_norm, scaled_dot_product_attention, silu

DRAFT_IDS_FILE = "draft_token_ids.json"


@dataclass(frozen=True)
class DraftShape:
    """Sizes of the draft. `head_size` is the number of ids it may propose; `dropout` acts in training only."""

    vocab_size: int = 49152
    head_size: int = 8192
    hidden_size: int = 192
    intermediate_size: int = 768
    num_layers: int = 2
    num_heads: int = 6
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    dropout: float = 0.0

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads


class DraftLayer(nn.Module):
    """One pre-norm decoder layer; query, key and value are one matrix, gate and up another."""

    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        self.shape = shape
        width, inner = shape.hidden_size, shape.intermediate_size
        self.attention_norm = nn.Parameter(torch.ones(width))
        self.query_key_value = nn.Parameter(torch.randn(3 * width, width) * width**-0.5)
        self.output = nn.Parameter(torch.zeros(width, width))
        self.mlp_norm = nn.Parameter(torch.ones(width))
        self.gate_up = nn.Parameter(torch.randn(2 * inner, width) * width**-0.5)
        self.down = nn.Parameter(torch.zeros(width, inner))

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """`hidden` is `[rows, columns, width]`, columns in causal order from position 0."""
        rows, columns, width = hidden.shape
        eps = self.shape.norm_eps
        fused = linear(rms_norm(hidden, (width,), self.attention_norm, eps), self.query_key_value)
        fused = fused.view(rows, columns, 3, self.shape.num_heads, self.shape.head_dim).transpose(1, 3)
        query, key, value = fused.unbind(2)
        attended = scaled_dot_product_attention(_rotate(query, cos, sin), _rotate(key, cos, sin), value, is_causal=True)
        attended = linear(attended.transpose(1, 2).reshape(rows, columns, width), self.output)
        hidden = hidden + dropout(attended, self.shape.dropout, self.training)
        gate, up = linear(rms_norm(hidden, (width,), self.mlp_norm, eps), self.gate_up).chunk(2, dim=-1)
        return hidden + dropout(linear(silu(gate) * up, self.down), self.shape.dropout, self.training)


class DraftModel(nn.Module):
    """Token ranks to hidden states; `table` doubles as the head."""

    def __init__(self, shape: DraftShape, table: Tensor) -> None:
        super().__init__()
        self.shape = shape
        self.table = nn.Parameter(table.clone())
        self.layers = nn.ModuleList(DraftLayer(shape) for _ in range(shape.num_layers))
        self.final_norm = nn.Parameter(torch.full((shape.hidden_size,), 0.3))

    def forward(self, ranks: Tensor) -> Tensor:
        """Hidden states after the last norm for `ranks` `[rows, columns]`; score them with rows of `table`."""
        angles = torch.arange(ranks.shape[1])[:, None] * self.shape.rope_theta ** -(
            torch.arange(0, self.shape.head_dim, 2) / self.shape.head_dim
        )
        angles = torch.cat((angles, angles), dim=-1)
        hidden = dropout(embedding(ranks, self.table, sparse=True), self.shape.dropout, self.training)
        for layer in self.layers:
            hidden = layer(hidden, angles.cos(), angles.sin())
        return rms_norm(hidden, (self.shape.hidden_size,), self.final_norm, self.shape.norm_eps)

    @property
    def matrices(self) -> list[nn.Parameter]:
        """The layers' weight matrices (not the table, not the norms)."""
        return [parameter for parameter in self.layers.parameters() if parameter.ndim == 2]

    @property
    def norms(self) -> list[nn.Parameter]:
        """All norm gains."""
        return [*(parameter for parameter in self.layers.parameters() if parameter.ndim == 1), self.final_norm]


def initial_table(target_embedding: Tensor, weights: Tensor, width: int, rms: float = 0.1) -> Tensor:
    """The target's embedding `[vocabulary, target width]` projected on its `width` main directions, scaled to `rms`.

    `weights` `[vocabulary]` says how much each id counts when the directions are chosen.
    """
    share = (weights.sqrt() + 1e-6) / (weights.sqrt() + 1e-6).sum()
    centred = target_embedding - share @ target_embedding
    covariance = centred.t() @ (centred * share[:, None])
    directions = torch.linalg.eigh(covariance).eigenvectors[:, -width:]
    table = centred @ directions
    table = table / (table.pow(2).mul(share[:, None]).sum(0) + 1e-9).sqrt().pow(0.5)  # flatten the spectrum half-way
    scaled: Tensor = table * (rms / table.pow(2).mean().sqrt())
    return scaled


def export(model: DraftModel, order: Tensor, directory: Path, tokenizer_files: dict[str, bytes]) -> None:
    """Write a standard Llama checkpoint in bfloat16; `order[rank]` is the token id of a rank."""
    directory.mkdir(parents=True, exist_ok=True)
    shape = model.shape
    table = torch.empty_like(model.table)
    table[order] = model.table.detach()
    tensors = {"model.embed_tokens.weight": table, "model.norm.weight": model.final_norm.detach()}
    for index, layer in enumerate(model.layers):
        assert isinstance(layer, DraftLayer)
        tensors |= {f"model.layers.{index}.{name}": value for name, value in _named_weights(layer)}
    half = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    save_file(half, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "dtype": "float32",
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": 8192,
        "num_attention_heads": shape.num_heads,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_heads,
        "rms_norm_eps": shape.norm_eps,
        "rope_parameters": {"rope_theta": shape.rope_theta, "rope_type": "default"},
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": shape.vocab_size,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    head_ids = sorted(order[: shape.head_size].tolist())
    (directory / DRAFT_IDS_FILE).write_text(json.dumps(head_ids, separators=(",", ":")) + "\n")
    for name, content in tokenizer_files.items():
        (directory / name).write_bytes(content)


def _named_weights(layer: DraftLayer) -> list[tuple[str, Tensor]]:
    query, key, value = layer.query_key_value.detach().chunk(3)
    gate, up = layer.gate_up.detach().chunk(2)
    return [
        ("input_layernorm.weight", layer.attention_norm.detach()),
        ("self_attn.q_proj.weight", query),
        ("self_attn.k_proj.weight", key),
        ("self_attn.v_proj.weight", value),
        ("self_attn.o_proj.weight", layer.output.detach()),
        ("post_attention_layernorm.weight", layer.mlp_norm.detach()),
        ("mlp.gate_proj.weight", gate),
        ("mlp.up_proj.weight", up),
        ("mlp.down_proj.weight", layer.down.detach()),
    ]


def _rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat((-second, first), dim=-1) * sin
