"""`outrider doctor`: looks at this machine and at the services, and says what to do."""

import dataclasses
import enum
import json
from collections.abc import Callable, Iterator
from importlib import metadata

from packaging.requirements import Requirement
from rich.console import Console
from rich.table import Table
from rich.text import Text

from controller.cli import models
from controller.cli.failures import explain
from controller.cli.options import DEFAULT_ADDRESS
from controller.cli.threads import split, usable_cores
from controller.cli.versions import MODEL, NOT_INSTALLED, version_of, versions
from controller.clients import DraftClient, GenerationClient, ServiceClient, VerifierClient
from speculative.errors import NotReadyError, OutriderError
from speculative.generation import DIFFERENT_VOCABULARIES, ServiceInfo
from speculative.messages import ModelInfo
from speculative.rpc.channel import channel_to, wait_serving

_TIMEOUT_S = 3.0
_FINGERPRINT_CHARS = 12
_ONE_TOKENIZER = "use a draft that was made for this target's tokenizer"
_CLIENTS: dict[str, Callable[..., ServiceClient]] = {"draft": DraftClient, "verifier": VerifierClient}


class Level(enum.Enum):
    """How bad a finding is: only BAD makes the command fail."""

    OK = "ok"
    NOTE = "note"
    BAD = "bad"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what was found, and what to do about it (empty: nothing)."""

    topic: str
    level: Level
    text: str
    advice: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Addresses:
    """Services to look at; None: not asked for. Without any, a controller is looked for at its default address."""

    controller: str | None = None
    draft: str | None = None
    verifier: str | None = None


async def examine(addresses: Addresses, notes: Console) -> list[Finding]:
    """All findings, this machine first."""
    findings = [*_versions(), _threads(), *_cache(notes)]
    if not (addresses.draft or addresses.verifier) or addresses.controller:
        findings += await _controller(addresses.controller)
    described: dict[str, ModelInfo] = {}
    for role, address in (("verifier", addresses.verifier), ("draft", addresses.draft)):
        if address:
            findings.append(await _service(role, address, described))
    if len(described) == len(_CLIENTS):
        findings.append(_pair(described["draft"], described["verifier"]))
    return findings


def show(findings: list[Finding], out: Console, *, as_json: bool) -> None:
    """A table, or one JSON object a finding."""
    if as_json:
        for one in findings:
            out.file.write(json.dumps(dataclasses.asdict(one) | {"level": one.level.value}) + "\n")
        return
    styles = {Level.OK: "green", Level.NOTE: "yellow", Level.BAD: "bold red"}
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("", "", "found", "what to do"):
        table.add_column(title, overflow="fold")
    for one in findings:
        cells = (Text(one.level.value, styles[one.level]), Text(one.topic), Text(one.text), Text(one.advice))
        table.add_row(*cells)
    out.print(table)


def _versions() -> Iterator[Finding]:
    found = versions()
    base = ", ".join(f"{name} {version}" for name, version in found.items() if name not in MODEL)
    unmet = list(_unmet())
    if unmet:
        yield Finding("versions", Level.BAD, "; ".join(unmet), "install again: pip install --upgrade outrider")
    else:
        yield Finding("versions", Level.OK, base)
    missing = [name for name in MODEL if found[name] == NOT_INSTALLED]
    if missing:
        text = f"{', '.join(missing)} not installed: only a controller and emulated models can run here"
        yield Finding("model packages", Level.NOTE, text, "to run models: pip install 'outrider[model]'")
    else:
        yield Finding("model packages", Level.OK, ", ".join(f"{name} {found[name]}" for name in MODEL))


def _unmet() -> Iterator[str]:
    """Requirements of the installed distribution that what is installed does not meet; extras only where installed."""
    try:
        requirements = metadata.requires("outrider") or []
    except metadata.PackageNotFoundError:
        return
    for requirement in map(Requirement, requirements):
        extra = requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})
        installed = version_of(requirement.name)
        if (extra and installed == NOT_INSTALLED) or requirement.specifier.contains(installed, prereleases=True):
            continue
        if not extra or requirement.name in MODEL:
            yield f"{requirement.name} {installed}, needed {requirement.specifier}"


def _threads() -> Finding:
    cores = usable_cores()
    threads = split(cores)
    text = f"{cores} usable cores: {threads.verifier} for a verifier, {threads.draft} for a draft"
    if cores == 1:
        return Finding("threads", Level.NOTE, text, "they share a core; speculation will hardly pay on this machine")
    return Finding("threads", Level.OK, text)


def _cache(notes: Console) -> Iterator[Finding]:
    for one in models.states(thorough=False, notes=notes):
        topic = f"demo {one.role}"
        if not one.num_bytes:
            yield Finding(topic, Level.NOTE, f"not at {one.directory}", "to have it: outrider models pull")
        elif one.problem:
            yield Finding(topic, Level.BAD, one.problem, "outrider models pull")
        else:
            yield Finding(topic, Level.OK, f"{one.num_bytes / 1e6:.0f} MB at {one.directory}")


async def _controller(address: str | None) -> list[Finding]:
    """The controller's own view; that none runs at the default address is no fault."""
    asked, address = address is not None, address or DEFAULT_ADDRESS
    topic = f"controller {address}"
    try:
        async with channel_to(address) as channel:
            info = await GenerationClient(address, channel).info(_TIMEOUT_S)
            await wait_serving(channel, "", _TIMEOUT_S, topic)
    except (OutriderError, TimeoutError) as error:
        if not asked and isinstance(error, NotReadyError):
            return [Finding(topic, Level.NOTE, "nothing answers there", "to start one: outrider up")]
        return [_failure(topic, error)]
    return list(_seen_by_controller(topic, info))


def _seen_by_controller(topic: str, info: ServiceInfo) -> Iterator[Finding]:
    text = f"serving; target {_model(info.target)}; default policy {info.default_policy}"
    yield Finding(topic, Level.OK, text)
    if info.draft is not None:
        yield _pair(info.draft, info.target)
    reason = f"off: {info.speculation_off_reason}"
    if DIFFERENT_VOCABULARIES in info.speculation_off_reason:
        yield Finding("speculation", Level.BAD, reason, _ONE_TOKENIZER)
    elif info.speculation_off_reason:
        yield Finding("speculation", Level.NOTE, reason, "look at the draft: outrider doctor --draft")


async def _service(role: str, address: str, described: dict[str, ModelInfo]) -> Finding:
    topic = f"{role} {address}"
    try:
        async with channel_to(address) as channel:
            info, limits = await _CLIENTS[role](address, channel).describe(_TIMEOUT_S)
            await wait_serving(channel, "", _TIMEOUT_S, topic)
    except (OutriderError, TimeoutError) as error:
        return _failure(topic, error)
    described[role] = info
    return Finding(topic, Level.OK, f"serving {_model(info)}; chunks up to {limits.max_chunk_tokens} tokens")


def _pair(draft: ModelInfo, target: ModelInfo) -> Finding:
    if draft.fits_any_vocabulary:
        return Finding("vocabulary", Level.OK, f"{draft.name} has no model and fits every target")
    if draft.vocab_fingerprint == target.vocab_fingerprint:
        return Finding("vocabulary", Level.OK, f"{draft.name} and {target.name} have the same")
    return Finding(
        "vocabulary",
        Level.BAD,
        f"differs: draft {_model(draft)}, target {_model(target)}",
        _ONE_TOKENIZER,
    )


def _failure(topic: str, error: Exception) -> Finding:
    explanation = explain(error)
    return Finding(topic, Level.BAD, explanation.problem, explanation.advice)


def _model(info: ModelInfo) -> str:
    fingerprint = info.vocab_fingerprint[:_FINGERPRINT_CHARS]
    return f"{info.name} ({info.dtype} on {info.device}, {info.vocab_size} tokens, vocabulary {fingerprint})"
