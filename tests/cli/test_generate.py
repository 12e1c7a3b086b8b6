"""What `outrider generate` sends, shows and says when it fails."""

import json
import signal
import subprocess
import sys

import pytest

from controller.cli import options
from speculative.errors import (
    CapacityError,
    ContextLengthError,
    IncompatibleModelError,
    InvalidRequestError,
    NotReadyError,
    UnauthenticatedError,
)
from speculative.generation import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    SpeculationOptions,
    StopConditions,
    TextPrompt,
)
from speculative.sampling.types import AcceptanceRule, SamplingParams
from tests.cli.conftest import CommandLine
from tests.cli.service import ANSWER, ScriptedGenerator


def test_a_pipe_gets_the_answer_and_nothing_else(outrider: CommandLine, address: str) -> None:
    result = outrider.run("generate", "--address", address, "hi")

    assert result.exit_code == 0
    assert result.stdout == "naïve horse\n"


def test_the_last_line_tells_how_the_answer_was_made(outrider: CommandLine, address: str) -> None:
    line = outrider.run("generate", "--address", address, "hi").stderr.strip().splitlines()[-1]

    assert line == (
        "3 tokens · 2.0 tokens/s · first token after 5 ms · 2 rounds · mean accepted length 0.50"
        " · acceptance 25 % of 4 drafted · finished: stop"
    )


def test_json_is_one_object_a_delta_and_one_at_the_end(outrider: CommandLine, address: str) -> None:
    result = outrider.run("generate", "--address", address, "--json", "hi")

    *deltas, finished = map(json.loads, result.stdout.splitlines())
    assert deltas == [
        {
            "type": "delta",
            "text": "naïve ",
            "token_ids": [10, 11],
            "token_origins": ["accepted", "recovered"],
            "text_ends": [4, 7],
        },
        {"type": "delta", "text": "horse", "token_ids": [12], "token_origins": ["bonus"], "text_ends": [5]},
    ]
    assert finished["type"] == "finished"
    assert (finished["seed"], finished["model"], finished["reason"], finished["matched_token_id"]) == (
        7,
        "big",
        "stop",
        2,
    )
    assert finished["usage"] == {"prompt_tokens": 3, "completion_tokens": 3}
    assert finished["statistics"]["accepted_histogram"] == [1, 1]
    assert finished["rates"] == {"tokens_per_s": 2.0, "mean_accepted_len": 0.5, "acceptance": 0.25}
    assert "\x1b" not in result.stdout


def test_every_option_arrives_in_the_request(outrider: CommandLine, address: str, generator: ScriptedGenerator) -> None:
    options = (
        *("--system", "Be brief.", "--max-tokens", "5", "--stop", "\n", "--stop", "END", "--temperature", "0.5"),
        *("--top-k", "3", "--top-p", "0.5", "--min-p", "0.25", "--seed", str(2**64 - 1), "--policy", "fixed"),
        *("--policy-param", "length=4", "--max-draft-tokens", "0", "--acceptance", "rejection"),
        "--no-prompt-lookup",
    )
    assert outrider.run("generate", "--address", address, *options, "hi").exit_code == 0

    assert generator.requests == [
        GenerationRequest(
            ChatPrompt((ChatMessage("system", "Be brief."), ChatMessage("user", "hi"))),
            SamplingParams(0.5, 3, 0.5, 0.25),
            2**64 - 1,
            StopConditions(5, ("\n", "END")),
            SpeculationOptions("fixed", {"length": 4.0}, 0, AcceptanceRule.REJECTION, prompt_lookup=False),
        )
    ]


def test_without_options_a_chat_is_answered_greedily(
    outrider: CommandLine, address: str, generator: ScriptedGenerator
) -> None:
    outrider.run("generate", "--address", address, "hi")

    greedy = SamplingParams(temperature=0.0)
    assert generator.requests == [GenerationRequest(ChatPrompt((ChatMessage("user", "hi"),)), greedy)]


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_the_prompt_may_come_from_standard_input(
    outrider: CommandLine, address: str, generator: ScriptedGenerator, arguments: tuple[str, ...]
) -> None:
    outrider.run("generate", "--address", address, "--raw", *arguments, typed="two\nlines")

    assert generator.requests[0].prompt == TextPrompt("two\nlines")


def test_the_address_may_come_from_the_environment(
    outrider: CommandLine, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_ADDRESS", address)
    assert outrider.run("generate", "hi").stdout == "naïve horse\n"


@pytest.mark.parametrize(
    ("error", "exit_code", "said"),
    [
        (
            InvalidRequestError("sampling.top_p", "must be in (0, 1]"),
            2,
            ("INVALID_ARGUMENT", "sampling.top_p", "option"),
        ),
        (ContextLengthError(600, 512), 2, ("OUT_OF_RANGE", "600", "shorten the prompt")),
        (CapacityError("256 sessions are open"), 3, ("RESOURCE_EXHAUSTED", "256 sessions", "try again")),
        (NotReadyError("draining"), 3, ("UNAVAILABLE", "draining", "outrider up")),
        (IncompatibleModelError("a and b differ"), 1, ("FAILED_PRECONDITION", "a and b", "outrider doctor")),
        (UnauthenticatedError("no credential"), 1, ("UNAUTHENTICATED", "credential")),
        (RuntimeError("secret"), 1, ("INTERNAL", "service's log")),
        (TimeoutError(), 3, ("DEADLINE_EXCEEDED", "--timeout")),
    ],
)
def test_a_failed_call_tells_status_reason_and_what_to_do(
    outrider: CommandLine,
    address: str,
    generator: ScriptedGenerator,
    error: Exception,
    exit_code: int,
    said: tuple[str, ...],
) -> None:
    generator.error = error
    result = outrider.run("generate", "--address", address, "hi")

    assert result.exit_code == exit_code
    assert all(text in result.stderr for text in said)
    assert "Traceback" not in result.stderr
    assert "secret" not in result.stderr
    assert result.stdout == ""


def test_an_address_where_nothing_listens_says_how_to_start_something(outrider: CommandLine) -> None:
    result = outrider.run("generate", "--address", "127.0.0.1:1", "hi")

    assert result.exit_code == 3
    assert "UNAVAILABLE" in result.stderr
    assert "outrider up" in result.stderr


def test_a_call_that_takes_too_long_is_given_up(
    outrider: CommandLine, address: str, generator: ScriptedGenerator
) -> None:
    generator.stall = True
    result = outrider.run("generate", "--address", address, "--timeout", "0.2", "hi")

    assert result.exit_code == 3
    assert "DEADLINE_EXCEEDED" in result.stderr
    assert generator.cancelled.wait(5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--policy-param", "length", "hi"), "NAME=VALUE"),
        (("--policy-param", "length=long", "hi"), "NAME=VALUE"),
        (("--acceptance", "maybe", "hi"), "maybe"),
        (("--raw", "--system", "x", "hi"), "--system"),
        (("--draft", "emulated:draft", "--no-draft", "hi"), "exclude each other"),
        (("--max-tokens", "0", "hi"), "--max-tokens"),
        (("--seed", "-1", "hi"), "--seed"),
        (("--top-k", "-1", "hi"), "--top-k"),
        (("--top-k", str(2**32), "hi"), "--top-k"),
        (("--max-tokens", str(2**32), "hi"), "--max-tokens"),
        (("--max-draft-tokens", str(2**32), "hi"), "--max-draft-tokens"),
        (("abc\udcff",), "UTF-8"),
        (("--system", "\udcff", "hi"), "UTF-8"),
        (("--stop", "\n", "--stop", "\udcff", "hi"), "UTF-8"),
        (("--policy-param", "\udcff=1", "hi"), "UTF-8"),
        (("",), "empty"),
    ],
)
def test_wrong_usage_is_refused_before_any_call(
    outrider: CommandLine, address: str, generator: ScriptedGenerator, arguments: tuple[str, ...], said: str
) -> None:
    result = outrider.run("generate", "--address", address, *arguments)

    assert result.exit_code == 2
    assert said in result.stderr
    assert not generator.requests


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_input_that_is_not_utf8_is_refused(
    outrider: CommandLine, address: str, generator: ScriptedGenerator, command: str
) -> None:
    result = outrider.run(command, "--address", address, typed=b"abc\xff\xfe\n")

    assert result.exit_code == 2
    assert "standard input is not UTF-8" in result.stderr
    assert not generator.requests


@pytest.mark.parametrize(
    "wrong", ["http://127.0.0.1:50050", "https://host", "host", "host:", "host:http", "host:65536", ":50050", "a/b:1"]
)
def test_an_address_that_is_not_host_and_port_is_refused(outrider: CommandLine, wrong: str) -> None:
    result = outrider.run("generate", "--address", wrong, "hi")

    assert result.exit_code == 2
    assert f"{wrong!r} is not host:port" in result.stderr


@pytest.mark.parametrize("right", ["host:1", "[::1]:50050", "10.0.0.1:65535", "unix:/run/outrider", "dns:///host:1"])
def test_every_form_of_an_address_is_taken(right: str) -> None:
    assert options.host_port(right) == right


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_reader_that_goes_away_ends_the_command_without_a_message(
    address: str, generator: ScriptedGenerator, form: tuple[str, ...]
) -> None:
    generator.events = (*ANSWER[:-1], *ANSWER[1:-1] * 8000, ANSWER[-1])
    command = [sys.executable, "-m", "controller.cli", "generate", "--address", address, *form, "hi"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read()
        process.wait(10)
    assert process.returncode == 141
    assert errors == ""


def test_ctrl_c_cancels_the_request_at_once(address: str, generator: ScriptedGenerator) -> None:
    generator.stall = True
    command = [sys.executable, "-m", "controller.cli", "generate", "--address", address, "hi"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.read(11) == "naïve horse"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert generator.cancelled.wait(5)


def test_the_command_line_runs_without_the_model_packages() -> None:
    program = """
import sys
import controller.cli.app
print({name.partition(".")[0] for name in sys.modules} & {"torch", "transformers", "numpy", "safetensors", "gguf"})
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert found.stdout.strip() == "set()"
