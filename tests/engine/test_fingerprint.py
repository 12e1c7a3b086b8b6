"""The vocabulary's fingerprint: equal iff ids mean the same in both models."""

import json
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models

from speculative.engine.fingerprint import read_vocabulary, vocab_fingerprint
from speculative.errors import ModelLoadError


def tokenizer_json(tokens: list[str] | None = None, special: str = "<end>", merges: int = 0) -> bytes:
    vocab = {token: token_id for token_id, token in enumerate(tokens or ["a", "b", "ab"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b")][:merges]))
    tokenizer.add_special_tokens([AddedToken(special, special=True)])
    return tokenizer.to_str().encode()


def edited(content: bytes, **added_token: Any) -> bytes:
    """The file with fields of its last added token changed."""
    document = json.loads(content)
    document["added_tokens"][-1].update(added_token)
    return json.dumps(document).encode()


def test_equal_vocabularies_have_equal_fingerprints() -> None:
    assert vocab_fingerprint(tokenizer_json()) == vocab_fingerprint(tokenizer_json())


def test_layout_of_the_file_does_not_count() -> None:
    document = json.loads(tokenizer_json())
    document["model"]["vocab"] = dict(reversed(document["model"]["vocab"].items()))
    rewritten = json.dumps(document, indent=3).encode()
    assert vocab_fingerprint(rewritten) == vocab_fingerprint(tokenizer_json())


def test_merges_do_not_count() -> None:
    assert vocab_fingerprint(tokenizer_json(merges=1)) == vocab_fingerprint(tokenizer_json())


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(tokenizer_json(["b", "a", "ab"]), id="two tokens swapped"),
        pytest.param(tokenizer_json(["a", "b", "ac"]), id="another token, same size"),
        pytest.param(tokenizer_json(["a", "b", "ab", "c"]), id="one token more"),
        pytest.param(tokenizer_json(special="<stop>"), id="another special token"),
        pytest.param(edited(tokenizer_json(), special=False), id="not special"),
    ],
)
def test_any_difference_in_meaning_changes_the_fingerprint(content: bytes) -> None:
    assert vocab_fingerprint(content) != vocab_fingerprint(tokenizer_json())


def test_ids_and_tokens_are_those_of_the_tokenizer() -> None:
    content = tokenizer_json()
    tokenizer = Tokenizer.from_str(content.decode())
    vocabulary = read_vocabulary(content)
    assert vocabulary.tokens == {token_id: token for token, token_id in tokenizer.get_vocab().items()}
    assert vocabulary.size == tokenizer.get_vocab_size()
    assert vocabulary.special_ids == {3}


def test_size_counts_ids_up_to_the_largest() -> None:
    assert read_vocabulary(edited(tokenizer_json(), id=9)).size == 10


def test_a_unigram_vocabulary_is_read_in_order_of_id() -> None:
    content = Tokenizer(models.Unigram([("<unk>", 0.0), ("x", -1.0)], 0, False)).to_str().encode()
    assert read_vocabulary(content).tokens == {0: "<unk>", 1: "x"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"{}",
        b"[]",
        b'{"model": {"vocab": 3}}',
        b'{"model": {"vocab": {}}}',
        b'{"model": {"vocab": {"a": "x"}}}',
        b'{"model": {"vocab": {"a": -1}}}',
        b'{"model": {"vocab": {"a": 0, "b": 0}}}',
        b'{"model": {"vocab": {"a": 0}}, "added_tokens": [{"content": "b"}]}',
    ],
)
def test_what_is_no_tokenizer_is_refused(content: bytes) -> None:
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        read_vocabulary(content)
