"""Colours and characters of a streamed answer."""

import io

import pytest
from rich.console import Console

from controller.cli.answers import Rates, TextView, printable, segments
from speculative.generation import Delta, Finished, FinishReason, Statistics, TokenOrigin, Usage
from tests.cli.service import ANSWER

ACCEPTED, RECOVERED, BONUS = TokenOrigin.ACCEPTED, TokenOrigin.RECOVERED, TokenOrigin.BONUS
GREEN, CYAN, END = "\x1b[32m", "\x1b[36m", "\x1b[0m"


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=40)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_accepted_and_own_tokens_have_different_colours() -> None:
    out = terminal()
    view = TextView(out, terminal())
    for event in ANSWER:
        view.show(event)

    assert written(out) == f"{GREEN}naï{END}{CYAN}ve {END}{CYAN}horse{END}\n"


def test_long_answers_are_not_broken_by_the_width_of_the_terminal() -> None:
    out = terminal()
    text = "word " * 30
    TextView(out, terminal()).show(Delta(text, (1,), (BONUS,), (len(text),)))

    assert written(out) == f"{CYAN}{text}{END}"


def test_markup_in_an_answer_is_text() -> None:
    out = terminal()
    TextView(out, terminal()).show(Delta("[red]x[/]", (1,), (BONUS,), (9,)))

    assert written(out) == f"{CYAN}[red]x[/]{END}"


def test_a_terminal_is_not_told_to_do_what_the_model_says() -> None:
    assert printable("a\x1b[2Jb\r\x07\n\tc\x9b") == "a\ufffd[2Jb\ufffd\ufffd\n\tc\ufffd"


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        (Delta("", (1,), (ACCEPTED,), (0,)), []),
        (Delta("é", (1, 2), (ACCEPTED, RECOVERED), (0, 2)), [("é", RECOVERED)]),
        (Delta("abc", (1, 2), (ACCEPTED, BONUS), (1, 3)), [("a", ACCEPTED), ("bc", BONUS)]),
        (Delta("tail"), [("tail", BONUS)]),
    ],
)
def test_text_belongs_to_the_token_that_finished_it(delta: Delta, expected: list[tuple[str, TokenOrigin]]) -> None:
    assert list(segments(delta)) == expected


def test_rates_divide_counters_and_know_nothing_of_nothing() -> None:
    plain = Finished(
        FinishReason.LENGTH, None, None, Usage(1, 4), Statistics(rounds=4, bonus=4, accepted_histogram=(4,))
    )
    assert Rates.of(plain) == Rates(tokens_per_s=None, mean_accepted_len=0.0, acceptance=None)

    cut = Statistics(rounds=1, drafted=8, accepted=2, accepted_histogram=(0,) * 8 + (1,), total_ns=10**9)
    assert Rates.of(Finished(FinishReason.STOP, None, None, Usage(1, 2), cut)) == Rates(2.0, 8.0, 1.0)
