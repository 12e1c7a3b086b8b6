"""The training data on disk: numbered safetensors files of token ids and the target's law at every response position.

A record is one prompt with one response. A shard concatenates records; offsets come from the lengths. Ids are
uint16 (the target has 49,152), probabilities float16, so a labelled position takes 66 bytes at 16 entries. Only ids
are kept: prompts can be rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file


@dataclass(frozen=True)
class Record:
    """A prompt, the target's response, and its law where each response token was chosen.

    `top_ids` and `top_probs` are `[len(response), k]`, most likely first; the probabilities are those at temperature 1
    over the whole vocabulary, so they sum to less than one. `temperature` is the one of the response (0: greedy).
    """

    prompt: NDArray[np.uint16]
    response: NDArray[np.uint16]
    top_ids: NDArray[np.uint16]
    top_probs: NDArray[np.float16]
    temperature: float


def write_shard(path: Path, records: Sequence[Record]) -> None:
    """Write `records` so that the file either is complete or does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file(
        {
            "prompt_len": np.array([len(record.prompt) for record in records], dtype=np.int32),
            "response_len": np.array([len(record.response) for record in records], dtype=np.int32),
            "temperature": np.array([record.temperature for record in records], dtype=np.float32),
            "prompt": np.concatenate([record.prompt for record in records]),
            "response": np.concatenate([record.response for record in records]),
            "top_ids": np.concatenate([record.top_ids for record in records]),
            "top_probs": np.concatenate([record.top_probs for record in records]),
        },
        partial,
    )
    partial.replace(path)


def read_shard(path: Path) -> Iterator[Record]:
    """The records of one shard, in the order they were written."""
    data = load_file(path)
    prompt_at = response_at = 0
    lengths = zip(data["prompt_len"], data["response_len"], data["temperature"], strict=True)
    for prompt_len, response_len, temperature in lengths:
        window = slice(response_at, response_at + response_len)
        yield Record(
            prompt=data["prompt"][prompt_at : prompt_at + prompt_len],
            response=data["response"][window],
            top_ids=data["top_ids"][window],
            top_probs=data["top_probs"][window],
            temperature=float(temperature),
        )
        prompt_at += prompt_len
        response_at += response_len


def read_shards(directory: Path, pattern: str = "*.safetensors") -> list[Record]:
    """The records of all finished shards of `directory`, in name order."""
    return [record for path in sorted(directory.glob(pattern)) for record in read_shard(path)]
