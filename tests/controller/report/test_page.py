"""What a report shows, and that it needs nothing but itself."""

import dataclasses
import re
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest

from controller.policies.base import ChunkPlan, RoundOutcome
from controller.policies.trace import RoundRecord
from controller.report.figures import MOST_ROUNDS_DRAWN, acceptance_by_position, accepted_histogram, costs
from controller.report.page import render

MS = 1_000_000
VOID = {"meta", "br", "link", "img", "input", "hr"}


def record(accepted_len: int, drafted_len: int, base_len: int = 10, request: str = "r1") -> RoundRecord:
    outcome = RoundOutcome(
        drafted_len,
        accepted_len,
        entropies_nats=tuple(0.5 + index for index in range(drafted_len)),
        draft_ns=2 * drafted_len * MS,
        queue_ns=MS,
        forward_ns=20 * MS,
        round_ns=(25 + 2 * drafted_len) * MS,
        batch_size=3,
        kl_nats=(0.25,) * drafted_len,
    )
    plan = ChunkPlan(drafted_len, stop_entropy_nats=1.5)
    state = {"wvir": 0.75, "sl_max": 9.0}
    return RoundRecord(request, base_len, plan, outcome, policy="adasd+dsde", state=state)


ROUNDS = [
    dataclasses.replace(record(2, 4), settings={"target": "big", "temperature": 0.5}),
    record(4, 4, 13),
    record(0, 0, 18),
    record(1, 3, 19),
    record(0, 2, 30, "r2"),
]


class Page(HTMLParser):
    """Refuses what does not nest, and collects attributes, titles and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(" ".join(data.split()))


@pytest.fixture(scope="module")
def html() -> str:
    return render(ROUNDS, ["a.jsonl"])


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


@pytest.mark.parametrize(
    "text",
    [
        "Rounds of adasd+dsde",
        "a.jsonl · 5 rounds of 2 requests",
        "Chunk length",
        "Entropy of the draft",
        "stop threshold",
        "Divergence: mean KL(target ‖ draft) of the round",
        "Stability of the divergence: WVIR, short over long variance",
        "Acceptance by position",
        "Accepted length",
        "Where a round's time goes",
        "verifier's forward",
        "network and loop",
        "milliseconds",
        "nats",
        "next request",
        "temperature",
        "0.5",
        "0 to 4",
    ],
)
def test_the_page_has_all_charts_their_units_and_the_settings(page: Page, text: str) -> None:
    assert text in page.texts


@pytest.mark.parametrize(
    "text",
    [
        "2.40",  # 12 tokens in 5 rounds
        "2.60",  # 13 drafted
        "54",  # 7 of 13 accepted, in percent
        "20",  # 1 of 5 rounds was plain, in percent
        "30.2",  # ms a round: 151 in 5
        "79.5",  # tokens/s: 12 in 151 ms
    ],
)
def test_the_numbers_that_sum_up_are_quotients_of_sums(page: Page, text: str) -> None:
    assert text in page.texts


def test_a_round_tells_its_numbers_when_pointed_at(page: Page) -> None:
    assert (
        "round 1 of r1, behind 10 tokens planned 4 · drafted 4 · accepted 2 stop threshold 1.50 nats"
        " entropies 0.50 1.50 2.50 3.50 mean KL 0.250 nats WVIR 0.75 33.0 ms in a batch of 3"
    ) in page.texts


def test_acceptance_counts_only_what_was_judged() -> None:
    texts = Page(str(acceptance_by_position(ROUNDS).drawing)).texts
    assert "position 1: 3 of 4 accepted where all before it were (75 %)" in texts
    assert "position 2: 2 of 3 accepted where all before it were (67 %)" in texts
    assert "position 3: 1 of 2 accepted where all before it were (50 %)" in texts
    assert "1 of 2 chunks of 4 or more accepted as far (50 %)" in texts


def test_the_histogram_counts_rounds_that_drafted() -> None:
    texts = Page(str(accepted_histogram(ROUNDS).drawing)).texts
    assert "0 accepted: 1 of 4 rounds (25 %)" in texts
    assert "4 accepted: 1 of 4 rounds (25 %)" in texts


def test_times_are_those_behind_each_first_round() -> None:
    # Left: 4 and 3 drafted in 33 and 31 ms; the plain one in 25.
    texts = Page(str(costs(ROUNDS).drawing)).texts
    assert "32.0 ms, 2 rounds" in texts
    assert "25.0 ms, 1 round" in texts
    assert "drafting: 7.00 ms of 32.00 (22 %)" in texts
    assert "network and loop: 4.00 ms of 32.00 (12 %)" in texts


def test_the_page_needs_nothing_else(html: str, page: Page) -> None:
    assert not re.search(r"https?:|//[a-z]|@import|url\(|<script|<link|<iframe|javascript:", html)
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "href", "style")]


def test_the_page_follows_dark_mode_and_narrow_screens(html: str) -> None:
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport"' in html


def evil() -> Iterator[RoundRecord]:
    attack = "<script>alert('x')</script>\"&"
    outcome = RoundOutcome(1, 1, (0.5,), 1, 1, 1, 5, 1)
    for base_len in (1, 3):
        settings = {f"key{attack}": f"value{attack}"} if base_len == 1 else {}
        yield RoundRecord(f"{attack}", base_len, ChunkPlan(1), outcome, policy=f"policy{attack}", settings=settings)


def test_whatever_a_trace_says_is_text() -> None:
    html = render(list(evil()), ["<b>&.jsonl"])
    page = Page(html)
    assert "<script" not in html
    assert "<b>&" not in html
    assert "value<script>alert('x')</script>\"&" in page.texts
    assert "<b>&.jsonl · 2 rounds of 1 request" in page.texts


def test_what_was_not_recorded_is_said() -> None:
    bare = RoundRecord("r", 5, ChunkPlan(0), RoundOutcome(0, 0, (), 0, 0, 0, 0, 1))
    texts = Page(render([bare], ["a"])).texts
    assert "not recorded: the policy had no use for it" in texts
    assert "this policy does not look at it" in texts
    assert texts.count("nothing was drafted") == 2
    assert "no times were recorded behind the first round of a request" in texts


def test_a_long_trace_draws_its_beginning_and_says_so() -> None:
    rounds = [record(1, 2, 10 + 2 * index) for index in range(MOST_ROUNDS_DRAWN + 5)]
    html = render(rounds, ["a"])
    assert f"The first {MOST_ROUNDS_DRAWN} of {len(rounds)} rounds." in html
    assert f"round {MOST_ROUNDS_DRAWN} of r1" in html
    assert f"round {MOST_ROUNDS_DRAWN + 1} of r1" not in html
