"""Prompts to token ids: plain text, chats through the model's own template, or ids as they are."""

import json
import traceback
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from controller.tokenizer import Tokenizer, special_tokens, template_source
from speculative.errors import ContextLengthError, InvalidRequestError
from speculative.generation import ChatMessage, ChatPrompt, Prompt, TextPrompt, TokenPrompt

_NORMALIZING = 4  # a tokenizer that composes characters first makes at most so many of them one
_TEMPLATE_NAME = "<template>"  # what jinja2 calls a template made from a string


class ChatTemplate:
    """A model's chat template, rendered in a sandbox with what transformers offers to templates."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        """`tokens`: special tokens by name, which the template sees as variables. A wrong `source` fails at render."""
        self._source = source
        self._tokens = dict(tokens)
        self._template: jinja2.Template | None = None

    def render(self, messages: tuple[ChatMessage, ...]) -> str:
        """The text of a chat up to where the answer begins; InvalidRequestError names the line that failed."""
        plain = [{"role": message.role, "content": message.content} for message in messages]
        try:
            if self._template is None:
                self._template = _environment().from_string(self._source)
            return self._template.render(
                messages=plain, tools=None, documents=None, add_generation_prompt=True, **self._tokens
            )
        except jinja2.TemplateSyntaxError as error:
            raise InvalidRequestError(
                "chat", f"the model's chat template is wrong at line {error.lineno}: {error.message}"
            ) from error
        except Exception as error:  # a template can fail in any way that Python can
            raise InvalidRequestError(
                "chat.messages",
                f"the model's chat template refuses them at line {_line_of(error)}: {error}",
            ) from error


class PromptEncoder:
    """Turns prompts into ids. Encoding may take long: call it off the event loop."""

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate | None, vocab_size: int, context_length: int
    ) -> None:
        """`vocab_size`: number of real ids of the target; `context_length`: most tokens it can have."""
        self._tokenizer = tokenizer
        self._template = template
        self._vocab_size = vocab_size
        self._context_length = context_length

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """At least one id; InvalidRequestError names the field of the request that is wrong.

        ContextLengthError for a prompt that cannot fit, however it is encoded; that costs nothing to find out.
        """
        match prompt:
            case TextPrompt(text):
                self._check_length(text)
                return self._checked("text", self._tokenizer.encode(text, add_special_tokens=True))
            case ChatPrompt(messages):
                for message in messages:
                    self._check_length(message.content)
                return self._checked("chat.messages", self._encode_chat(messages))
            case TokenPrompt(token_ids):
                return self._checked("tokens.token_ids", token_ids)

    def _check_length(self, text: str) -> None:
        """Refuses texts of more characters than a full context of the longest tokens, with room for what normalising
        takes away.
        """
        least = len(text) // (_NORMALIZING * self._tokenizer.longest_token_chars)
        if least >= self._context_length:
            raise ContextLengthError(least + 1, self._context_length)

    def _checked(self, field: str, token_ids: Sequence[int]) -> tuple[int, ...]:
        if not token_ids:
            raise InvalidRequestError(field, "has no tokens")
        if len(token_ids) >= self._context_length:
            raise ContextLengthError(len(token_ids) + 1, self._context_length)
        check_ids(field, token_ids, self._vocab_size)
        return tuple(token_ids)

    def _encode_chat(self, messages: tuple[ChatMessage, ...]) -> list[int]:
        if self._template is None:
            raise InvalidRequestError("chat", "the model has no chat template; send text or token ids")
        return self._tokenizer.encode(self._template.render(messages), add_special_tokens=False)


def check_ids(field: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """InvalidRequestError, naming the first one, if there are ids that the model does not have."""
    if token_ids and max(token_ids) >= vocab_size:
        index = next(index for index, token_id in enumerate(token_ids) if token_id >= vocab_size)
        raise InvalidRequestError(f"{field}[{index}]", f"{token_ids[index]} is no token id; there are {vocab_size}")


def prompt_encoder(
    tokenizer: Tokenizer, files: Mapping[str, bytes], vocab_size: int, context_length: int
) -> PromptEncoder:
    """The encoder of a model, from its tokenizer files."""
    source = template_source(files)
    template = ChatTemplate(source, special_tokens(files)) if source else None
    return PromptEncoder(tokenizer, template, vocab_size, context_length)


class _GenerationBlock(Extension):
    """Lets `{% generation %}` blocks, which mark answers for training, stand for what they hold."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_contents"), [], [], body).set_lineno(line)

    def _contents(self, caller: Any) -> str:  # noqa: ANN401  # a jinja2 macro
        return str(caller())


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without jinja2's HTML escapes, which would change what the model reads."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().astimezone().strftime(layout)


def _line_of(error: Exception) -> int | str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _TEMPLATE_NAME]
    return lines[-1] if lines and lines[-1] is not None else "unknown"
