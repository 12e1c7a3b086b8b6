"""A conversation."""

import signal
import subprocess
import sys

from speculative.errors import CapacityError
from speculative.generation import ChatPrompt
from tests.cli.conftest import CommandLine
from tests.cli.service import ScriptedGenerator


def messages(generator: ScriptedGenerator, turn: int) -> list[tuple[str, str]]:
    prompt = generator.requests[turn].prompt
    assert isinstance(prompt, ChatPrompt)
    return [(message.role, message.content) for message in prompt.messages]


def test_each_turn_carries_the_conversation_so_far(
    outrider: CommandLine, address: str, generator: ScriptedGenerator
) -> None:
    result = outrider.run("chat", "--address", address, "--system", "Be brief.", typed="one\ntwo\n")

    assert result.exit_code == 0
    assert result.stdout == "naïve horse\n" * 2
    assert messages(generator, 0) == [("system", "Be brief."), ("user", "one")]
    assert messages(generator, 1) == [*messages(generator, 0), ("assistant", "naïve horse"), ("user", "two")]


def test_a_failed_turn_is_told_and_forgotten(outrider: CommandLine, address: str, generator: ScriptedGenerator) -> None:
    generator.error = CapacityError("full")
    result = outrider.run("chat", "--address", address, typed="one\ntwo\n\nthree\n")

    assert result.exit_code == 0
    assert result.stderr.count("RESOURCE_EXHAUSTED: full") == 2
    assert messages(generator, 1) == [("user", "two")]
    assert len(generator.requests) == 2  # the empty line ended it


def test_ctrl_c_interrupts_an_answer_and_not_the_conversation(address: str, generator: ScriptedGenerator) -> None:
    generator.stall = True
    command = [sys.executable, "-m", "controller.cli", "chat", "--address", address]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("one\n")
        process.stdin.flush()
        assert process.stdout.read(11) == "naïve horse"
        process.send_signal(signal.SIGINT)
        assert generator.cancelled.wait(5)
        generator.stall = False
        out, errors = process.communicate("two\n", timeout=10)
    assert process.returncode == 0
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert out.endswith("naïve horse\n")
    assert messages(generator, 1) == [("user", "two")]
