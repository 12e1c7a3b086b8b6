"""Small real tokenizers of the kinds that models have, built in code."""

import json
from collections.abc import Mapping

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from controller.tokenizer import CONFIG_FILE, TOKENIZER_FILE

BOS, EOS = "<s>", "</s>"

_WORDS = ("hello", "stop", "a", "b", "c", "x", "y", "z", "the", "end", ".", "\n")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}\n"
    "  {%- if message.role not in ['system', 'user', 'assistant'] %}\n"
    "    {{- raise_exception('unknown role ' + message.role) }}\n"
    "  {%- endif %}\n"
    "[{{ message.role }}] {{ message.content | trim }}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def byte_level() -> Tokenizer:
    """Like GPT-2's and Llama 3's: every byte, some words, and tokens that hold parts of characters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: index for index, character in enumerate(alphabet)}
    merges = []
    for text in (" hello", "stop", "😀", "你", " 😀", "é"):
        shown = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0]
        merges += _merge_all(shown, vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _with_specials(tokenizer)


def byte_fallback() -> Tokenizer:
    """Like Llama 2's: pieces with a mark for spaces, byte tokens for what has no piece, one leading space dropped."""
    vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(0x100)}
    pieces = ["▁", *_WORDS, *(f"▁{word}" for word in _WORDS), "▁▁", "é", "日"]
    vocab |= {piece: len(vocab) + index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _with_specials(tokenizer)


def metaspace() -> Tokenizer:
    """Like T5's: the first token loses its leading space."""
    words = ["▁", *_WORDS, *(f"▁{word}" for word in _WORDS), "😀"]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="▁"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return _with_specials(tokenizer)


def word_piece() -> Tokenizer:
    """Like BERT's: pieces that continue a word begin with ##."""
    words = ["[UNK]", *_WORDS, *(f"##{word}" for word in _WORDS)]
    tokenizer = Tokenizer(models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    return _with_specials(tokenizer)


def suffixed() -> Tokenizer:
    """Like the first GPT's: a mark ends each word, and stands for a space unless it ends the text."""
    words = [*_WORDS, *(f"{word}</w>" for word in _WORDS)]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="a"))
    tokenizer.decoder = decoders.BPEDecoder()
    return _with_specials(tokenizer)


def plain_words() -> Tokenizer:
    """Without a decoder: tokens are joined by spaces."""
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(_WORDS)}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return _with_specials(tokenizer)


ALL = {made.__name__: made for made in (byte_level, byte_fallback, metaspace, word_piece, suffixed, plain_words)}


def files(tokenizer: Tokenizer, template: str | None = CHAT_TEMPLATE, **config: object) -> dict[str, bytes]:
    """The files that a verifier would serve."""
    content: Mapping[str, object] = {"bos_token": BOS, "eos_token": {"content": EOS}, **config}
    if template is not None:
        content = {**content, "chat_template": template}
    return {TOKENIZER_FILE: tokenizer.to_str().encode(), CONFIG_FILE: json.dumps(content).encode()}


def _with_specials(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(BOS, special=True), AddedToken(EOS, special=True)])
    special = [(BOS, tokenizer.get_vocab()[BOS])]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=special)
    return tokenizer


def _merge_all(shown: str, vocab: dict[str, int]) -> list[tuple[str, str]]:
    merges = []
    for end in range(2, len(shown) + 1):
        if shown[:end] not in vocab:
            vocab[shown[:end]] = len(vocab)
            merges.append((shown[: end - 1], shown[end - 1]))
    return merges
