"""A local trio of real processes, with emulated models."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from controller.cli import connection
from tests.cli.conftest import CommandLine

OUTRIDER = (sys.executable, "-m", "controller.cli")
EMULATED = ("--target", "emulated:target")


@contextlib.contextmanager
def up(*arguments: str) -> Iterator[tuple["subprocess.Popen[str]", dict[str, Any]]]:
    command = [*OUTRIDER, "up", *EMULATED, "--listen", "127.0.0.1:0", "--json", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            if process.poll() is None:
                process.terminate()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def answer(outrider: CommandLine, address: str, *arguments: str) -> dict[str, Any]:
    result = outrider.run("generate", "-a", address, "--json", "--max-tokens", "24", *arguments, "hello")
    assert result.exit_code == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    text = "".join(line["text"] for line in lines[:-1])
    finished: dict[str, Any] = lines[-1]
    return finished | {"text": text}


def test_a_trio_answers_and_sigterm_stops_all_of_it(outrider: CommandLine) -> None:
    with up() as (process, said):
        assert set(said["addresses"]) == set(said["pids"]) == {"verifier", "draft", "controller"}
        always = ("--policy", "fixed", "--policy-param", "guard=0")
        speculative = answer(outrider, said["addresses"]["controller"], *always)
        plain = answer(outrider, said["addresses"]["controller"], "--max-draft-tokens", "0")
        process.terminate()
        _, errors = process.communicate(timeout=20)

    assert speculative["statistics"]["accepted"] > 0
    assert plain["statistics"]["drafted"] == 0
    assert speculative["text"] == plain["text"]
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert not any(alive(pid) for pid in said["pids"].values())


def test_a_dead_draft_is_reported_and_the_rest_goes_on_until_the_verifier_dies(outrider: CommandLine) -> None:
    with up() as (process, said):
        address, pids = said["addresses"]["controller"], said["pids"]
        os.kill(pids["draft"], signal.SIGKILL)
        assert process.stderr is not None
        assert f"draft service (process {pids['draft']}) was killed by signal 9" in process.stderr.readline()
        assert answer(outrider, address)["statistics"]["drafted"] == 0

        os.kill(pids["verifier"], signal.SIGKILL)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert f"verifier service (process {pids['verifier']}) was killed by signal 9" in errors
    assert not any(alive(pid) for pid in pids.values())


def test_ctrl_c_in_the_terminal_stops_the_children_in_order() -> None:
    with up("--no-draft") as (process, said):
        assert set(said["pids"]) == {"verifier", "controller"}
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert not any(alive(pid) for pid in said["pids"].values())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
def test_children_do_not_outlive_a_parent_that_is_killed() -> None:
    with up("--no-draft") as (process, said):
        process.kill()
        process.communicate(timeout=20)
        deadline = time.monotonic() + 10
        while (living := [pid for pid in said["pids"].values() if alive(pid)]) and time.monotonic() < deadline:
            time.sleep(0.02)
    assert not living


def test_a_signal_during_the_start_leaves_nobody_behind() -> None:
    with subprocess.Popen([*OUTRIDER, "up", *EMULATED], stderr=subprocess.PIPE, text=True) as process:
        children = _wait_for_children(process.pid)
        process.terminate()
        process.communicate(timeout=20)
    assert process.returncode == 0
    assert not any(alive(pid) for pid in children)


def _wait_for_children(pid: int) -> list[int]:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
        if found:
            return [int(one) for one in found]
        time.sleep(0.02)
    raise AssertionError("no child was started")


def test_a_model_that_cannot_be_loaded_is_named_with_the_reason(outrider: CommandLine) -> None:
    result = outrider.run("up", "--target", "emulated:nonsense", "--listen", "127.0.0.1:0")

    assert result.exit_code == 1
    assert "verifier service could not start: no emulated profile 'nonsense'" in result.stderr


def test_a_model_without_the_packages_it_needs_is_refused_with_what_to_install(
    outrider: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "version_of", lambda name: "not installed")
    result = outrider.run("up", "--target", "demo")

    assert result.exit_code == 1
    assert "torch" in result.stderr
    assert "pip install 'outrider[model]'" in result.stderr


def test_a_draft_without_a_model_works_with_any_target(outrider: CommandLine) -> None:
    with up("--draft", "lookup") as (_, said):
        always = ("--policy", "fixed", "--policy-param", "guard=0", "--temperature", "0")
        answered = answer(outrider, said["addresses"]["controller"], *always)
        plain = answer(outrider, said["addresses"]["controller"], "--max-draft-tokens", "0")

    assert answered["text"] == plain["text"]
    assert answered["policy"] == "fixed"
    assert answered["statistics"]["looked_up"] == answered["statistics"]["drafted"]


def test_a_port_that_is_taken_is_said(outrider: CommandLine, address: str) -> None:
    result = outrider.run("up", *EMULATED, "--no-draft", "--listen", address)

    assert result.exit_code == 1
    assert f"controller service could not start: cannot listen on {address}: address already in use" in result.stderr


def test_a_pair_with_different_vocabularies_serves_the_target_only_and_says_so(outrider: CommandLine) -> None:
    result = outrider.run(
        "generate", *EMULATED, "--draft", "emulated:draft?vocab=rotated", "--json", "--max-tokens", "4", "hi"
    )

    assert result.exit_code == 0
    assert "speculation is off" in result.stderr
    assert json.loads(result.stdout.splitlines()[-1])["statistics"]["drafted"] == 0


@pytest.mark.slow
def test_the_demo_answers_the_same_with_and_without_speculation() -> None:
    result = subprocess.run([*OUTRIDER, "demo"], capture_output=True, text=True, check=True, timeout=600)

    assert "outputs: equal, token for token" in result.stderr
    assert "horse" in result.stdout
