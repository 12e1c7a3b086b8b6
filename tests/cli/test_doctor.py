"""What `outrider doctor` finds."""

import dataclasses
import json
from typing import Any

import pytest
from rich.console import Console

from controller.cli import doctor
from controller.cli.versions import MODEL
from controller.pool import check_pair
from speculative.errors import IncompatibleModelError
from speculative.generation import ServiceInfo
from tests.cli.conftest import CommandLine
from tests.cli.service import DRAFT, INFO, TARGET, ScriptedGenerator
from tests.support.servers import draft_server, verifier_server


def findings(outrider: CommandLine, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    result = outrider.run("doctor", "--json", *arguments)
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return result.exit_code, {one["topic"]: one for one in found}


def test_a_healthy_controller_is_described(outrider: CommandLine, address: str) -> None:
    exit_code, found = findings(outrider, "--address", address)

    assert exit_code == 0
    assert found[f"controller {address}"]["level"] == "ok"
    assert "big" in found[f"controller {address}"]["text"]
    assert found["vocabulary"]["level"] == "ok"


def test_an_idle_machine_is_no_fault_but_says_what_to_do(
    outrider: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "DEFAULT_ADDRESS", "127.0.0.1:1")
    exit_code, found = findings(outrider)

    assert exit_code == 0
    assert found["controller 127.0.0.1:1"]["level"] == "note"
    assert "outrider up" in found["controller 127.0.0.1:1"]["advice"]
    assert "outrider models pull" in found["demo target"]["advice"]
    assert found["versions"]["level"] == "ok"
    assert "grpcio" in found["versions"]["text"]


def test_an_address_that_was_asked_for_must_answer(outrider: CommandLine) -> None:
    exit_code, found = findings(outrider, "--address", "127.0.0.1:1")

    assert exit_code == 1
    assert found["controller 127.0.0.1:1"]["level"] == "bad"


def test_switched_off_speculation_is_told_with_its_reason(
    outrider: CommandLine, address: str, generator: ScriptedGenerator
) -> None:
    generator.service_info = dataclasses.replace(INFO, draft=None, speculation_off_reason="no draft service")
    exit_code, found = findings(outrider, "--address", address)

    assert exit_code == 0
    assert "no draft service" in found["speculation"]["text"]


def test_different_vocabularies_are_bad_and_both_are_named(
    outrider: CommandLine, address: str, generator: ScriptedGenerator
) -> None:
    other = dataclasses.replace(DRAFT, vocab_fingerprint="b" * 64)
    generator.service_info = ServiceInfo(TARGET, other, "", "off", ("off",), 16, 1024)
    exit_code, found = findings(outrider, "--address", address)

    assert exit_code == 1
    assert "small" in found["vocabulary"]["text"]
    assert "big" in found["vocabulary"]["text"]


def test_a_draft_that_the_controller_refused_is_bad(
    outrider: CommandLine, address: str, generator: ScriptedGenerator
) -> None:
    with pytest.raises(IncompatibleModelError) as refused:
        check_pair(dataclasses.replace(DRAFT, vocab_fingerprint="b" * 64), TARGET)
    generator.service_info = dataclasses.replace(INFO, draft=None, speculation_off_reason=str(refused.value))
    exit_code, found = findings(outrider, "--address", address)

    assert exit_code == 1
    assert found["speculation"]["level"] == "bad"
    assert "'small'" in found["speculation"]["text"]
    assert "tokenizer" in found["speculation"]["advice"]


async def test_draft_and_verifier_are_compared(outrider: CommandLine) -> None:
    async with (
        draft_server("emulated:draft?vocab=rotated") as draft,
        verifier_server() as verifier,
    ):
        addresses = doctor.Addresses(draft=draft.address, verifier=verifier.address)
        found = {one.topic: one for one in await doctor.examine(addresses, Console(stderr=True))}

    assert found[f"draft {draft.address}"].level is doctor.Level.OK
    assert found[f"verifier {verifier.address}"].level is doctor.Level.OK
    assert found["vocabulary"].level is doctor.Level.BAD


def test_a_package_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = ["grpcio<2,>=1.85", "rich>=14", "torch<2.14,>=2.13; extra == 'model'", "ruff>=1; extra == 'dev'"]
    installed = {"grpcio": "1.60.0", "rich": "14.1", "torch": "2.1.0+cpu", "ruff": "0.1"}
    monkeypatch.setattr("importlib.metadata.requires", lambda name: requirements)
    monkeypatch.setattr(doctor, "version_of", lambda name: installed[name])

    assert list(doctor._unmet()) == ["grpcio 1.60.0, needed <2,>=1.85", "torch 2.1.0+cpu, needed <2.14,>=2.13"]


def test_the_table_shows_brackets_as_they_are(outrider: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DEFAULT_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr(doctor, "versions", lambda: dict.fromkeys(("outrider", *MODEL), "not installed"))

    assert "pip install 'outrider[model]'" in outrider.run("doctor").stdout
