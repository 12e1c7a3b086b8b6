"""The commands' options, and what they say: a request, and where it goes."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from controller.cli.connection import Remote, Where
from controller.cli.failures import WRONG_REQUEST, CommandError
from controller.cli.threads import split, usable_cores
from controller.cli.trio import EMULATED, TrioPlan
from controller.policies.registry import policy_names
from speculative.engine.demo_model import DEMO
from speculative.generation import (
    ChatMessage,
    ChatPrompt,
    Prompt,
    TextPrompt,
)
from speculative.sampling.types import AcceptanceRule

DEFAULT_ADDRESS = "127.0.0.1:50050"
MAX_UINT32 = 2**32 - 1
"""The largest count that a request can carry."""
_EMULATED_DRAFT = "emulated:draft"
_ADDRESS = re.compile(r"(unix|unix-abstract|vsock|dns|ipv4|ipv6):.+|[^/]+:(?P<port>[0-9]{1,5})")
_MAX_PORT = 2**16 - 1

Text = TypeVar("Text", str, list[str])


def utf8(value: Text | None) -> Text | None:
    """Refuses arguments that are not UTF-8, which Python passes on as lone surrogates."""
    try:
        "".join(value or ()).encode()
    except UnicodeEncodeError:
        raise typer.BadParameter("it is not UTF-8") from None
    return value


def host_port(address: str | None) -> str | None:
    """Refuses what gRPC would take for the name of a host that cannot be found, or for port 443."""
    if not address:
        return address
    form = _ADDRESS.fullmatch(address)
    if form is None or int(form["port"] or 0) > _MAX_PORT:
        raise typer.BadParameter(f"{address!r} is not host:port, for example {DEFAULT_ADDRESS}")
    return address


_MODELS, _SAMPLING, _STOPPING, _SPECULATION = "Models", "Sampling", "Stopping", "Speculation"

Target = Annotated[
    str,
    typer.Option(
        "--target", "--model", help="Target: directory, hub id, demo, or emulated:PROFILE.", rich_help_panel=_MODELS
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(help="Draft; the demo and emulated targets have one by default.", rich_help_panel=_MODELS),
]
NoDraft = Annotated[bool, typer.Option("--no-draft", help="Start no draft: target only.", rich_help_panel=_MODELS)]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        "-a",
        envvar="OUTRIDER_ADDRESS",
        callback=host_port,
        help="Controller to ask, host:port; without it see --local.",
    ),
]
Local = Annotated[
    bool, typer.Option("--local", help="Start a draft, a verifier and a controller for this call (the default).")
]
PromptText = Annotated[str | None, typer.Argument(callback=utf8, help="The prompt; - or nothing reads standard input.")]
System = Annotated[str | None, typer.Option(callback=utf8, help="System message of the chat.")]
Raw = Annotated[bool, typer.Option("--raw", help="Send the prompt as plain text, without the chat template.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.", rich_help_panel=_SAMPLING)]
TopK = Annotated[
    int, typer.Option(min=0, max=MAX_UINT32, help="Keep the k likeliest tokens; 0: all.", rich_help_panel=_SAMPLING)
]
TopP = Annotated[float, typer.Option(help="Keep the likeliest tokens up to this mass.", rich_help_panel=_SAMPLING)]
MinP = Annotated[
    float, typer.Option(help="Keep tokens this likely relative to the likeliest.", rich_help_panel=_SAMPLING)
]
Seed = Annotated[
    int | None,
    typer.Option(min=0, max=2**64 - 1, help="Equal seeds, equal answers; default: drawn.", rich_help_panel=_SAMPLING),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(min=1, max=MAX_UINT32, help="Most tokens; default: the server's.", rich_help_panel=_STOPPING),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(callback=utf8, help="String that ends the answer; repeatable.", rich_help_panel=_STOPPING),
]
Policy = Annotated[
    str | None,
    typer.Option(
        callback=utf8,
        help=f"Chunk policy: {', '.join(policy_names())}; or the server's.",
        rich_help_panel=_SPECULATION,
    ),
]
PolicyParam = Annotated[
    list[str] | None,
    typer.Option(
        callback=utf8,
        metavar="NAME=VALUE",
        help="Parameter of the policy; repeatable.",
        rich_help_panel=_SPECULATION,
    ),
]
MaxDraftTokens = Annotated[
    int | None,
    typer.Option(min=0, max=MAX_UINT32, help="Most draft tokens in a chunk; 0: off.", rich_help_panel=_SPECULATION),
]
PromptLookup = Annotated[
    bool | None,
    typer.Option(
        "--prompt-lookup/--no-prompt-lookup",
        help="Whether drafts look repetitions up first; default: the server's.",
        rich_help_panel=_SPECULATION,
    ),
]
Acceptance = Annotated[AcceptanceRule, typer.Option(help="How draft tokens are judged.", rich_help_panel=_SPECULATION)]
Trace = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False,
        help="Append a line of numbers for every round to this file (no text, no tokens), for replay and report.",
        rich_help_panel=_SPECULATION,
    ),
]
Traces = Annotated[
    list[Path], typer.Argument(exists=True, dir_okay=False, metavar="TRACE...", help="Files of rounds, JSON lines.")
]
Timeout = Annotated[float | None, typer.Option(min=0.0, help="Give up after so many seconds.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON objects, one a line.")]
Wheel = Annotated[
    Path | None, typer.Option(exists=True, dir_okay=False, help="The wheel, where it is on this machine already.")
]


def where(address: str | None, local: TrioPlan, *, force_local: bool) -> Where:
    """The address if there is one, unless --local was given."""
    return Remote(address) if address and not force_local else local


def trio_plan(
    target: str = DEMO,
    draft: str | None = None,
    *,
    no_draft: bool = False,
    listen: str = "127.0.0.1:0",
    policy: str | None = None,
) -> TrioPlan:
    """What to start. The demo and emulated targets have a draft unless told otherwise; others only the one named."""
    if no_draft and draft:
        raise typer.BadParameter("--draft and --no-draft exclude each other")
    if not no_draft and draft is None:
        draft = DEMO if target == DEMO else _EMULATED_DRAFT if target.startswith(EMULATED) else None
    return TrioPlan(target, draft, split(usable_cores(), with_draft=draft is not None), listen, policy)


def prompt_text(prompt: str | None) -> str:
    """The prompt, from standard input if it is not given. Raises CommandError if there is none."""
    if prompt is None and sys.stdin.isatty():
        raise typer.BadParameter("give a prompt, or pipe one in", param_hint="PROMPT")
    text = typed(sys.stdin.read) if prompt is None or prompt == "-" else prompt
    if not text:
        raise CommandError("the prompt is empty", "give some text", WRONG_REQUEST)
    return text


def typed(read: Callable[[], str]) -> str:
    """What `read` reads from standard input. Raises CommandError if it is not UTF-8."""
    try:
        text = read()
        text.encode()  # in some locales Python reads other bytes as lone surrogates
    except UnicodeError:
        raise CommandError("standard input is not UTF-8", "convert it, for example with iconv", WRONG_REQUEST) from None
    return text


def as_prompt(text: str, system: str | None, *, raw: bool) -> Prompt:
    """A chat of one message, or plain text."""
    if raw and system is not None:
        raise typer.BadParameter("--system needs the chat template, which --raw leaves out")
    if raw:
        return TextPrompt(text)
    return ChatPrompt((*system_message(system), ChatMessage("user", text)))


def system_message(system: str | None) -> tuple[ChatMessage, ...]:
    """What a chat begins with."""
    return (ChatMessage("system", system),) if system is not None else ()


def policy_parameters(pairs: list[str] | None) -> dict[str, float]:
    """NAME=VALUE pairs as the request wants them."""
    parameters: dict[str, float] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        try:
            parameters[name] = float(value)
        except ValueError:
            name = ""
        if not name or not equals:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE with a number", param_hint="--policy-param")
    return parameters
