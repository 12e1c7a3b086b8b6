"""Prompts to ids: the tokenizer's own special tokens, the model's own chat template, ids as they are."""

import asyncio
import json
import time

import pytest

from controller.prompt import ChatTemplate, PromptEncoder, prompt_encoder
from controller.tokenizer import CONFIG_FILE, TEMPLATE_FILE, TOKENIZER_FILE, Tokenizer, special_tokens, template_source
from speculative.errors import ContextLengthError, InvalidRequestError, ModelLoadError
from speculative.generation import ChatMessage, ChatPrompt, Prompt, TextPrompt, TokenPrompt
from tests.controller import small_tokenizers
from tests.controller.small_tokenizers import BOS

FILES = small_tokenizers.files(small_tokenizers.byte_level())
TOKENIZER = Tokenizer(FILES)
VOCAB_SIZE = small_tokenizers.byte_level().get_vocab_size()
CONTEXT = 1000
BOS_ID = small_tokenizers.byte_level().get_vocab()[BOS]


def encoder(files: dict[str, bytes] = FILES) -> PromptEncoder:
    return prompt_encoder(TOKENIZER, files, VOCAB_SIZE, CONTEXT)


def chat(*turns: tuple[str, str]) -> ChatPrompt:
    return ChatPrompt(tuple(ChatMessage(role, content) for role, content in turns))


def template(source: str) -> PromptEncoder:
    return encoder(small_tokenizers.files(small_tokenizers.byte_level(), source))


def test_text_gets_the_tokenizers_own_special_tokens() -> None:
    ids = encoder().encode(TextPrompt("hello"))
    assert ids[0] == BOS_ID
    assert TOKENIZER.decode(ids) == "hello"


def test_a_chat_is_rendered_by_the_models_template_and_gets_no_more_special_tokens() -> None:
    ids = encoder().encode(chat(("system", " be brief "), ("user", "hello")))
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == f"{BOS}[system] be brief\n[user] hello\n[assistant]"
    assert ids.count(BOS_ID) == 1


def test_token_ids_are_used_as_they_are() -> None:
    assert encoder().encode(TokenPrompt((0, 5, 0))) == (0, 5, 0)


def test_the_padding_and_truncation_of_the_file_do_not_touch_prompts() -> None:
    padded = small_tokenizers.byte_level()
    padded.enable_padding(length=50)
    padded.enable_truncation(3)
    files = small_tokenizers.files(padded)
    ids = prompt_encoder(Tokenizer(files), files, VOCAB_SIZE, CONTEXT).encode(TextPrompt("abcdef"))
    assert ids == encoder().encode(TextPrompt("abcdef"))
    assert len(ids) == 7


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (TokenPrompt((1, VOCAB_SIZE)), "tokens.token_ids[1]"),
        (TokenPrompt(()), "tokens.token_ids"),
        (chat(("robot", "hello")), "chat.messages"),
    ],
)
def test_a_wrong_prompt_names_its_field(prompt: Prompt, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        encoder().encode(prompt)
    assert caught.value.field == field


def test_text_without_tokens_is_refused() -> None:
    bare = small_tokenizers.plain_words()
    bare.post_processor = None
    files = small_tokenizers.files(bare)
    with pytest.raises(InvalidRequestError) as caught:
        prompt_encoder(Tokenizer(files), files, 100, CONTEXT).encode(TextPrompt(""))
    assert caught.value.field == "text"


def test_a_template_that_refuses_names_its_reason_and_line() -> None:
    with pytest.raises(InvalidRequestError, match=r"line 3.*unknown role robot"):
        encoder().encode(chat(("user", "a"), ("robot", "b")))


def test_a_template_that_is_wrong_names_its_line() -> None:
    with pytest.raises(InvalidRequestError, match=r"line 2") as caught:
        template("a\n{% if %}").encode(chat(("user", "a")))
    assert caught.value.field == "chat"


def test_a_template_that_fails_at_run_time_names_its_line() -> None:
    with pytest.raises(InvalidRequestError, match=r"line 2.*division"):
        template("a\n{{ 1 / 0 }}").encode(chat(("user", "a")))


@pytest.mark.parametrize("source", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}"])
def test_a_template_is_kept_in_a_sandbox(source: str) -> None:
    with pytest.raises(InvalidRequestError, match="line 1"):
        template(source).encode(chat(("user", "a")))


def test_a_model_without_a_template_says_so() -> None:
    files = small_tokenizers.files(small_tokenizers.byte_level(), None)
    with pytest.raises(InvalidRequestError, match="no chat template") as caught:
        encoder(files).encode(chat(("user", "a")))
    assert caught.value.field == "chat"


RENDERED = [
    ("{% for m in messages %}\n  {% if true %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}", "user\n"),
    ("{{ messages | tojson }}", '[{"role": "user", "content": "<é>"}]'),
    (
        "{{ messages | tojson(indent=1) }}",
        json.dumps([{"role": "user", "content": "<é>"}], ensure_ascii=False, indent=1),
    ),
    ("{{ bos_token }}{{ eos_token }}{{ pad_token }}", "<s></s>"),
    ("{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}", "1"),
    ("{% generation %}{{ messages[0]['content'] }}{% endgeneration %}", "<é>"),
    ("{{ strftime_now('%Y')[:2] }}", "20"),
    ("{% if tools is none and documents is none and add_generation_prompt %}yes{% endif %}", "yes"),
    ("{% set ns = namespace(n=1) %}{% set ns.n = 2 %}{{ ns.n }}", "2"),
]


@pytest.mark.parametrize(("source", "expected"), RENDERED)
def test_templates_get_what_transformers_gives_them(source: str, expected: str) -> None:
    rendered = ChatTemplate(source, special_tokens(FILES)).render((ChatMessage("user", "<é>"),))
    assert rendered == expected


def test_transformers_renders_the_same() -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils", reason="the controller runs without it")
    messages = [{"role": "user", "content": "<é>"}]
    for source in [source for source, _ in RENDERED] + [small_tokenizers.CHAT_TEMPLATE]:
        [expected], _ = utils.render_jinja_template(
            [messages], chat_template=source, add_generation_prompt=True, **special_tokens(FILES)
        )
        assert ChatTemplate(source, special_tokens(FILES)).render((ChatMessage("user", "<é>"),)) == expected


def test_a_template_file_comes_before_the_configuration() -> None:
    assert template_source(FILES) == small_tokenizers.CHAT_TEMPLATE
    assert template_source({**FILES, TEMPLATE_FILE: b"own"}) == "own"
    named = json.dumps({"chat_template": [{"name": "default", "template": "d"}, {"name": "tools", "template": "t"}]})
    assert template_source({CONFIG_FILE: named.encode()}) == "d"
    assert template_source({}) is None


@pytest.mark.parametrize(
    "files",
    [{}, {TOKENIZER_FILE: b"{}"}, {TOKENIZER_FILE: b"\xff"}],
    ids=["missing", "empty", "no text"],
)
def test_an_unusable_tokenizer_is_a_load_error(files: dict[str, bytes]) -> None:
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        Tokenizer(files)


def test_a_broken_configuration_is_a_load_error() -> None:
    with pytest.raises(ModelLoadError, match="tokenizer_config"):
        prompt_encoder(TOKENIZER, {**FILES, CONFIG_FILE: b"{"}, VOCAB_SIZE, CONTEXT)


class NoTokenizer(Tokenizer):
    """Fails the test when it is used."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        raise AssertionError("the prompt was encoded")


@pytest.mark.parametrize("prompt", [TextPrompt("a" * 10**7), chat(("user", "a" * 10**7)), TokenPrompt((0,) * CONTEXT)])
def test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded(prompt: Prompt) -> None:
    with pytest.raises(ContextLengthError) as caught:
        prompt_encoder(NoTokenizer(FILES), FILES, VOCAB_SIZE, CONTEXT).encode(prompt)
    assert caught.value.needed_len > caught.value.context_len == CONTEXT


async def test_encoding_a_long_text_lets_the_event_loop_run() -> None:
    longest_s, begun = 0.0, time.monotonic()
    encoding = asyncio.create_task(
        asyncio.to_thread(TOKENIZER.encode, "a long text " * 300_000, add_special_tokens=True)
    )
    while not encoding.done():
        await asyncio.sleep(0.001)
        longest_s, begun = max(longest_s, time.monotonic() - begun), time.monotonic()
    assert len(await encoding) > 300_000
    assert longest_s < 0.5  # encoding takes more than a second
