"""The target's tokenizer, made of the files its verifier service hands out; no model files on this machine."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from tokenizers import Tokenizer as FastTokenizer

from controller.text import REPLACEMENT
from speculative.errors import ModelLoadError

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"


class Tokenizer:
    """Text to ids and back, as transformers does it with the same files; a `TextDecoder` for text.py."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        """`files` by base name; ModelLoadError without a usable tokenizer.json."""
        try:
            content = files[TOKENIZER_FILE]
            self._tokenizer = FastTokenizer.from_str(content.decode())
            decoder = json.loads(content).get("decoder")
        except KeyError as error:
            raise ModelLoadError(f"the verifier serves no {TOKENIZER_FILE}: the model has no fast tokenizer") from error
        except Exception as error:  # tokenizers raises bare Exception
            raise ModelLoadError(f"{TOKENIZER_FILE} cannot be read: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        added = self._tokenizer.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._bytes = self._byte_tokens() if "ByteFallback" in json.dumps(decoder) else {}
        self.anchor_ids = self._find_anchor()
        self.longest_token_chars = max(map(len, self._tokenizer.get_vocab(with_added_tokens=True)), default=1)

    @property
    def splits_characters(self) -> bool:
        """Whether a token other than a byte-fallback one may hold only part of a character."""
        return not self._bytes

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The ids of a text; may take long, so not for the event loop."""
        # Of the library's ways to encode, this one lets other threads run meanwhile.
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids; unknown ones are left out."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def has_text(self, token_id: int) -> bool:
        """False for special tokens and unknown ids."""
        return token_id not in self._special_ids and self._tokenizer.id_to_token(token_id) is not None

    def byte_of(self, token_id: int) -> int | None:
        """The byte that a byte-fallback token stands for."""
        return self._bytes.get(token_id)

    def _byte_tokens(self) -> dict[int, int]:
        ids = ((self._tokenizer.token_to_id(f"<0x{byte:02X}>"), byte) for byte in range(0x100))
        return {token_id: byte for token_id, byte in ids if token_id is not None}

    def _find_anchor(self) -> tuple[int, ...]:
        """The first ordinary token with visible text; none in a vocabulary without any."""
        for token_id in range(self._tokenizer.get_vocab_size()):
            if self.has_text(token_id) and self.byte_of(token_id) is None:
                text = self.decode([token_id])
                if text.strip() and REPLACEMENT not in text:
                    return (token_id,)
        return ()


def template_source(files: Mapping[str, bytes]) -> str | None:
    """The model's chat template: a file of its own before one in the configuration; None if there is none."""
    if TEMPLATE_FILE in files:
        return files[TEMPLATE_FILE].decode()
    template = _config(files).get("chat_template")
    if isinstance(template, list):  # several by name; "default" is what a plain chat uses
        named = {entry["name"]: entry["template"] for entry in template}
        return named.get("default")
    return cast(str | None, template)


def special_tokens(files: Mapping[str, bytes]) -> dict[str, str]:
    """The tokens that a chat template can name, for example bos_token and eos_token."""
    tokens = {}
    for name, value in _config(files).items():
        if name.endswith("_token"):
            content = value.get("content") if isinstance(value, dict) else value
            if isinstance(content, str):
                tokens[name] = content
    return tokens


def _config(files: Mapping[str, bytes]) -> dict[str, Any]:
    try:
        return cast(dict[str, Any], json.loads(files.get(CONFIG_FILE, b"{}")))
    except ValueError as error:
        raise ModelLoadError(f"{CONFIG_FILE} cannot be read: {error}") from error
