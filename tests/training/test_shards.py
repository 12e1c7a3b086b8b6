"""Training data survives the disk."""

from pathlib import Path

import numpy as np

from training.shards import Record, read_shards, write_shard


def _record(rng: np.random.Generator, prompt_len: int, response_len: int, temperature: float) -> Record:
    return Record(
        prompt=rng.integers(0, 49152, prompt_len).astype(np.uint16),
        response=rng.integers(0, 49152, response_len).astype(np.uint16),
        top_ids=rng.integers(0, 49152, (response_len, 16)).astype(np.uint16),
        top_probs=rng.random((response_len, 16)).astype(np.float16),
        temperature=temperature,
    )


def test_records_come_back_as_written_and_in_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    written = [_record(rng, 3, 5, 0.0), _record(rng, 1, 1, 1.0), _record(rng, 7, 2, 0.5)]
    write_shard(tmp_path / "a-00000.safetensors", written[:2])
    write_shard(tmp_path / "a-00001.safetensors", written[2:])
    read = read_shards(tmp_path)
    assert len(read) == 3
    for before, after in zip(written, read, strict=True):
        for name in ("prompt", "response", "top_ids", "top_probs"):
            expected, found = getattr(before, name), getattr(after, name)
            assert found.dtype == expected.dtype
            assert np.array_equal(found, expected)
        assert after.temperature == before.temperature


def test_an_interrupted_write_leaves_no_shard(tmp_path: Path) -> None:
    (tmp_path / "a-00000.partial").write_bytes(b"half")
    assert read_shards(tmp_path) == []
