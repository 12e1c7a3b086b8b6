"""The identity of a vocabulary, computed from a tokenizer.json: two models can work together iff theirs are equal.

What counts is what a token id means, so the fingerprint covers the id -> token map and the special tokens. Which ids
end a sequence does not count: a base model may draft for its instruct sibling. Merges, normalisers and templates do not
count: text is tokenised once, with the target's files, and ids travel. Rows of the embedding beyond the last token
(padding) have no entry in the file and so do not count either.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from speculative.errors import ModelLoadError

_FORMAT = b"outrider vocabulary 1"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What each token id means; `tokens` maps ids to tokens as the file writes them, added tokens included."""

    tokens: Mapping[int, str]
    special_ids: frozenset[int]

    @property
    def size(self) -> int:
        """The number of real ids: one more than the largest."""
        return max(self.tokens) + 1

    def fingerprint(self) -> str:
        """SHA-256 (hex) over the id -> token map and the special ids, in order of id."""
        digest = hashlib.sha256(_FORMAT)
        for token_id, token in sorted(self.tokens.items()):
            _update(digest, b"token", str(token_id).encode(), token.encode("utf-8", "surrogatepass"))
        for token_id in sorted(self.special_ids):
            _update(digest, b"special", str(token_id).encode())
        return digest.hexdigest()


def vocab_fingerprint(tokenizer_json: bytes) -> str:
    """The fingerprint of the vocabulary in the file's content; see `Vocabulary.fingerprint`.

    Raises ModelLoadError if the content is not a tokenizer.json.
    """
    return read_vocabulary(tokenizer_json).fingerprint()


def read_vocabulary(tokenizer_json: bytes) -> Vocabulary:
    """Reads the vocabulary from the content of a tokenizer.json (any model: BPE, WordPiece, WordLevel, Unigram).

    Raises ModelLoadError if the content is not a tokenizer.json, or if one id stands for two tokens.
    """
    try:
        document = json.loads(tokenizer_json)
        pairs = [*_model_pairs(document["model"]["vocab"]), *_added_pairs(document.get("added_tokens") or [])]
        special_ids = frozenset(int(added["id"]) for added in document.get("added_tokens") or [] if added["special"])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ModelLoadError(f"tokenizer.json cannot be read: {type(error).__name__}: {error}") from error
    return Vocabulary(_unique(pairs), special_ids)


def _model_pairs(vocab: dict[str, int] | list[list[object]]) -> list[tuple[int, str]]:
    """Ids and tokens of the model part: a map token -> id, or (Unigram) a list of [token, score] in order of id."""
    if isinstance(vocab, dict):
        return [(int(token_id), token) for token, token_id in vocab.items()]
    return [(token_id, str(entry[0])) for token_id, entry in enumerate(vocab)]


def _added_pairs(added_tokens: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(int(added["id"]), str(added["content"])) for added in added_tokens]


def _unique(pairs: list[tuple[int, str]]) -> dict[int, str]:
    tokens: dict[int, str] = {}
    for token_id, token in pairs:
        if tokens.setdefault(token_id, token) != token:
            raise ModelLoadError(f"tokenizer.json gives id {token_id} to two tokens: {tokens[token_id]!r}, {token!r}")
    if not tokens or min(tokens) < 0:
        raise ModelLoadError("tokenizer.json holds no tokens, or negative ids")
    return tokens


def _update(digest: "hashlib._Hash", *parts: bytes) -> None:
    """Feeds the parts with their lengths, so that no two lists of parts feed the same bytes."""
    for part in parts:
        digest.update(len(part).to_bytes(4, "little"))
        digest.update(part)
