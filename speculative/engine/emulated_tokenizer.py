"""A byte-level tokenizer built in code: one token a byte and four special tokens, no merges.

It is a real tokenizer.json of the `tokenizers` library, so all that handles a model's tokenizer handles this one.
Text begins with `<|bos|>`; chats have the form that `CHAT_TEMPLATE` gives them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

BOS = "<|bos|>"
EOS = "<|eos|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
_SPECIAL_TOKENS = (BOS, EOS, TURN_START, TURN_END)

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# The bytes that GPT-2's byte-level alphabet shows as themselves come first, as in its vocabulary: id 0 is "!", a token
# that answers really contain.
_SHOWN_BYTES = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
ALL_BYTES = (*_SHOWN_BYTES, *(byte for byte in range(0x100) if byte not in _SHOWN_BYTES))


@dataclass(frozen=True, slots=True)
class ByteVocabulary:
    """Token id i stands for the byte `byte_of[i]`; the special tokens follow behind."""

    byte_of: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of ids, special tokens included."""
        return len(self.byte_of) + len(_SPECIAL_TOKENS)

    @property
    def bos_id(self) -> int:
        """Begins every text."""
        return len(self.byte_of)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The ids that end a sequence: of the text, and of a turn."""
        return (self._special_id(EOS), self._special_id(TURN_END))

    @property
    def special_ids(self) -> dict[str, int]:
        """The special tokens and their ids."""
        return {token: self._special_id(token) for token in _SPECIAL_TOKENS}

    def _special_id(self, token: str) -> int:
        return len(self.byte_of) + _SPECIAL_TOKENS.index(token)


def tokenizer_files(vocabulary: ByteVocabulary) -> dict[str, bytes]:
    """The contents of tokenizer.json and tokenizer_config.json, by file name.

    A byte that the vocabulary lacks is dropped when text is encoded.
    """
    return {
        "tokenizer.json": _json(_tokenizer(vocabulary)),
        "tokenizer_config.json": _json(_TOKENIZER_CONFIG),
    }


_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": BOS,
    "eos_token": TURN_END,
    "clean_up_tokenization_spaces": False,
    "chat_template": CHAT_TEMPLATE,
}


def _tokenizer(vocabulary: ByteVocabulary) -> dict[str, object]:
    shown = _byte_characters()
    tokens = [shown[byte] for byte in vocabulary.byte_of] + list(_SPECIAL_TOKENS)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(token_id, token) for token, token_id in vocabulary.special_ids.items()],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": _begin_with_bos(vocabulary.bos_id),
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": [],
        },
    }


def _added_token(token_id: int, content: str) -> dict[str, object]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token_id, "content": content, **flags}


def _begin_with_bos(bos_id: int) -> dict[str, object]:
    bos = {"SpecialToken": {"id": BOS, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": type_id}} for type_id, name in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": [bos, first],
        "pair": [bos, first, second],
        "special_tokens": {BOS: {"id": BOS, "ids": [bos_id], "tokens": [BOS]}},
    }


def _byte_characters() -> Sequence[str]:
    """The character that stands for each byte in a byte-level tokenizer.json, as GPT-2 defined them."""
    characters = [chr(byte) for byte in range(0x100)]
    hidden = (byte for byte in range(0x100) if byte not in _SHOWN_BYTES)
    for offset, byte in enumerate(hidden):
        characters[byte] = chr(0x100 + offset)
    return characters


def _json(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False, indent=1).encode()
