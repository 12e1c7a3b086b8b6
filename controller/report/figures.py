"""The charts of a report."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup

from controller.policies.recorded_costs import network_and_loop_ns, without_first_rounds
from controller.policies.trace import RoundRecord
from controller.report.svg import Plot, box, dot, dots, joined, line, nice_ticks, steps, tag

MOST_ROUNDS_DRAWN = 200
"""Rounds in the charts over time; more would be narrower than a pixel can show."""

_WIDE, _NARROW = 1040.0, 480.0
_MOST_CHARACTERS = 12


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend: the class of its swatch, and what it stands for."""

    swatch: str
    text: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart; None instead of a drawing: `remark` says why there is nothing to draw."""

    title: str
    keys: tuple[Key, ...]
    drawing: Markup | None
    remark: str = ""


class Timeline:
    """The charts over time: one column for each of the first rounds, the same in all of them."""

    def __init__(self, records: Sequence[RoundRecord]) -> None:
        self._records = records[:MOST_ROUNDS_DRAWN]
        self._numbers: list[int] = []
        count: Counter[str] = Counter()
        for record in self._records:
            count[record.request] += 1
            self._numbers.append(count[record.request])

    def figures(self) -> tuple[Figure, ...]:
        """All of them, top to bottom."""
        return self.lengths(), self.entropies(), self.divergences(), self.stability()

    def lengths(self) -> Figure:
        """Planned, drafted and accepted length of every round."""
        most = max(max(record.plan.max_tokens, record.outcome.drafted_len) for record in self._records)
        plot, marks = self._plot(max(1, most), 190, "tokens", whole=True)
        width = self._column_px(plot)
        for index, record in enumerate(self._records):
            outcome, left = record.outcome, plot.x(index) + 0.1 * width
            for low, high, look in (
                (0, outcome.accepted_len, "accepted"),
                (outcome.accepted_len, outcome.drafted_len, "rejected"),
            ):
                if high > low:
                    marks.append(box(left, plot.y(high), 0.8 * width, plot.y(low) - plot.y(high), f"fill {look}"))
        planned = [(plot.x(index + 0.5), plot.y(record.plan.max_tokens)) for index, record in enumerate(self._records)]
        marks.append(steps(planned, "stroke planned", width))
        keys = (
            Key("fill accepted", "accepted"),
            Key("fill rejected", "rejected"),
            Key("stroke planned", "planned, at most"),
        )
        return self._figure("Chunk length", keys, plot, marks)

    def entropies(self) -> Figure:
        """Entropy of the draft at each token, and the threshold at which it stopped."""
        highest = max((max(record.outcome.entropies_nats, default=0.0) for record in self._records), default=0.0)
        thresholds = [record.plan.stop_entropy_nats for record in self._records]
        plot, marks = self._plot(max(highest, *(value or 0.0 for value in thresholds), 0.1), 190, "nats")
        good: list[tuple[float, float]] = []
        behind: list[tuple[float, float]] = []
        wrong: list[Markup] = []
        for index, record in enumerate(self._records):
            x = plot.x(index + 0.5)
            for place, entropy in enumerate(record.outcome.entropies_nats):
                point = (x, plot.y(entropy))
                if place < record.outcome.accepted_len:
                    good.append(point)
                elif place > record.outcome.accepted_len:
                    behind.append(point)
                else:
                    wrong.append(dot(*point, 3, "fill rejected"))
        marks += [dots(behind, "dots behind"), dots(good, "dots accepted"), *wrong]
        keys = [
            Key("fill accepted", "accepted"),
            Key("fill rejected", "first rejected"),
            Key("fill behind", "behind it"),
        ]
        if any(value is not None for value in thresholds):
            marks.append(self._level(plot, thresholds))
            keys.append(Key("stroke threshold", "stop threshold"))
        return self._figure("Entropy of the draft", tuple(keys), plot, marks)

    def divergences(self) -> Figure:
        """Mean KL of every round."""
        means = [fmean(record.outcome.kl_nats) if record.outcome.kl_nats else None for record in self._records]
        title, remark = "Divergence: mean KL(target ‖ draft) of the round", "not recorded: the policy had no use for it"
        return self._curve(title, means, "nats", "divergence", "mean KL", remark)

    def stability(self) -> Figure:
        """DSDE's variance ratio before every round."""
        values = [record.state.get("wvir") for record in self._records]
        title, remark = "Stability of the divergence: WVIR, short over long variance", "this policy does not look at it"
        return self._curve(title, values, "ratio", "threshold", "WVIR", remark)

    def _curve(
        self, title: str, values: Sequence[float | None], unit: str, look: str, name: str, remark: str
    ) -> Figure:
        known = [value for value in values if value is not None]
        if not known:
            return Figure(title, (), None, remark)
        plot, marks = self._plot(max(0.1, *known), 140, unit)
        points = [(plot.x(i + 0.5), None if value is None else plot.y(value)) for i, value in enumerate(values)]
        marks.append(line(points, f"stroke {look}"))
        marks.append(dots([(x, y) for x, y in points if y is not None], f"dots {look}"))
        return self._figure(title, (Key(f"stroke {look}", name),), plot, marks)

    def _level(self, plot: Plot, values: Sequence[float | None]) -> Markup:
        points = [(plot.x(i + 0.5), None if value is None else plot.y(value)) for i, value in enumerate(values)]
        return steps(points, "stroke threshold", self._column_px(plot))

    def _plot(self, high: float, height: float, unit: str, *, whole: bool = False) -> tuple[Plot, list[Markup]]:
        ticks = nice_ticks(high, 4, whole=whole)
        count = len(self._records)
        plot = Plot.sized(_WIDE, height, (0.0, float(count)), ticks[-1])
        places = nice_ticks(count, 10, whole=True)
        labels = [(value - 0.5, f"{value:g}") for value in (1.0, *places[1:]) if value <= count]
        marks = [plot.axes("round", unit, labels, ticks)]
        for index, number in enumerate(self._numbers):
            if index and number == 1:
                x = plot.x(index)
                marks.append(tag("line", x1=x, x2=x, y1=plot.y.start_px, y2=plot.y.end_px, class_="boundary"))
        return plot, marks

    def _column_px(self, plot: Plot) -> float:
        return plot.x(1.0) - plot.x(0.0)

    def _figure(self, title: str, keys: tuple[Key, ...], plot: Plot, marks: Sequence[Markup]) -> Figure:
        width, height = self._column_px(plot), plot.y.start_px - plot.y.end_px
        covers = (
            box(plot.x(index), plot.y.end_px, width, height, "cover", self._tooltip(index, record))
            for index, record in enumerate(self._records)
        )
        if any(number == 1 for number in self._numbers[1:]):
            keys = (*keys, Key("stroke boundary", "next request"))
        return Figure(title, keys, plot.drawing(title, [*marks, *covers], fluid=False))

    def _tooltip(self, index: int, record: RoundRecord) -> str:
        outcome, plan = record.outcome, record.plan
        lines = [
            f"round {self._numbers[index]} of {_shortened(record.request)}, behind {record.base_len} tokens",
            f"planned {plan.max_tokens} · drafted {outcome.drafted_len} · accepted {outcome.accepted_len}",
        ]
        if record.looked_up_len:
            lines.append(f"{record.looked_up_len} of the drafted were looked up")
        if plan.stop_entropy_nats is not None:
            lines.append(f"stop threshold {plan.stop_entropy_nats:.2f} nats")
        if outcome.entropies_nats:
            lines.append("entropies " + " ".join(f"{value:.2f}" for value in outcome.entropies_nats))
        if outcome.kl_nats:
            lines.append(f"mean KL {fmean(outcome.kl_nats):.3f} nats")
        if "wvir" in record.state:
            lines.append(f"WVIR {record.state['wvir']:.2f}")
        lines.append(f"{outcome.round_ns / 1e6:.1f} ms in a batch of {outcome.batch_size}")
        return "\n".join(lines)


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"


def acceptance_by_position(records: Iterable[RoundRecord]) -> Figure:
    """How often the token at each place of a chunk is accepted, judged alone and with all those before it."""
    drafted: Counter[int] = Counter()
    judged: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for record in records:
        outcome = record.outcome
        drafted.update(range(outcome.drafted_len))
        judged.update(range(min(outcome.drafted_len, outcome.accepted_len + 1)))
        accepted.update(range(outcome.accepted_len))
    title = "Acceptance by position"
    if not drafted:
        return Figure(title, (), None, "nothing was drafted")
    length = len(drafted)
    plot = Plot.sized(_NARROW, 250, (0.0, float(length)), 1.0, left=64)
    marks = [
        plot.axes(
            "position in the chunk", "accepted", _bar_labels(range(1, length + 1)), [0, 0.25, 0.5, 0.75, 1], _percent
        )
    ]
    width = plot.x(1.0) - plot.x(0.0)
    for place in range(length):
        if judged[place]:
            share = accepted[place] / judged[place]
            text = f"position {place + 1}: {accepted[place]} of {judged[place]} accepted where all before it were"
            left, top = plot.x(place + 0.14), plot.y(share)
            marks.append(box(left, top, 0.72 * width, plot.y(0) - top, "fill accepted", f"{text} ({_percent(share)})"))
    shares = [(plot.x(place + 0.5), accepted[place] / drafted[place]) for place in range(length)]
    marks.append(line([(x, plot.y(share)) for x, share in shares], "stroke threshold"))
    for place, (x, share) in enumerate(shares):
        text = (
            f"{accepted[place]} of {drafted[place]} chunks of {place + 1} or more accepted as far ({_percent(share)})"
        )
        marks.append(dot(x, plot.y(share), 3.5, "fill threshold ring", text))
    keys = Key("fill accepted", "of those reached"), Key("stroke threshold", "of all drafted")
    return Figure(title, keys, plot.drawing(title, marks, fluid=True))


def accepted_histogram(records: Iterable[RoundRecord]) -> Figure:
    """How many rounds accepted how many draft tokens."""
    counts = Counter(record.outcome.accepted_len for record in records if record.outcome.drafted_len)
    title = "Accepted length"
    if not counts:
        return Figure(title, (), None, "nothing was drafted")
    length, total = max(counts) + 1, counts.total()
    ticks = nice_ticks(max(counts.values()), 4, whole=True)
    plot = Plot.sized(_NARROW, 250, (0.0, float(length)), ticks[-1])
    marks = [plot.axes("draft tokens accepted in a round", "rounds", _bar_labels(range(length)), ticks)]
    width = plot.x(1.0) - plot.x(0.0)
    for value, count in sorted(counts.items()):
        text = f"{value} accepted: {count} of {total} rounds ({_percent(count / total)})"
        top = plot.y(count)
        marks.append(box(plot.x(value + 0.1), top, 0.8 * width, plot.y(0) - top, "fill accepted", text))
    return Figure(title, (Key("fill accepted", "rounds that drafted"),), plot.drawing(title, marks, fluid=True))


def _bar_labels(values: range) -> list[tuple[float, str]]:
    """Labels under the bars, at most about 12 of them."""
    stride = -(-len(values) // 12)
    return [(index + 0.5, str(value)) for index, value in enumerate(values) if index % stride == 0]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


_PARTS = (
    ("draft", "draft", "drafting"),
    ("queue", "queue", "verifier's queue"),
    ("forward", "forward", "verifier's forward"),
    ("rest", "rest", "network and loop"),
)


def costs(records: Iterable[RoundRecord]) -> Figure:
    """Where the time of a mean round goes, with and without a draft."""
    rounds = [record for record in without_first_rounds(records) if record.outcome.round_ns]
    groups = {
        "with a draft": [record for record in rounds if record.outcome.drafted_len],
        "plain": [record for record in rounds if not record.outcome.drafted_len],
    }
    rows = {name: (len(group), _mean_parts_ms(group)) for name, group in groups.items() if group}
    title = "Where a round's time goes"
    if not rows:
        return Figure(title, (), None, "no times were recorded behind the first round of a request")
    ticks = nice_ticks(max(sum(parts.values()) for _, parts in rows.values()), 6)
    height = 56.0 * len(rows) + 54.0
    plot = Plot.sized(_WIDE, height, (0.0, ticks[-1]), 1.0, left=168)
    parts = [tag("text", "milliseconds", x=(plot.x.start_px + plot.x.end_px) / 2, y=height - 6, class_="title mid")]
    for tick in ticks:
        x = plot.x(tick)
        look = "base" if tick == 0 else "grid"
        parts.append(tag("line", x1=x, x2=x, y1=plot.y.start_px, y2=plot.y.end_px, class_=look))
        parts.append(tag("text", f"{tick:g}", x=x, y=plot.y.start_px + 16, class_="tick mid"))
    for index, (name, (count, means)) in enumerate(rows.items()):
        parts.append(_cost_row(plot, 16 + 56.0 * index, name, count, means))
    keys = tuple(Key(f"fill {look}", text) for _, look, text in _PARTS)
    return Figure(title, keys, plot.drawing(title, parts, fluid=False))


def _cost_row(plot: Plot, top: float, name: str, count: int, means: Mapping[str, float]) -> Markup:
    total = sum(means.values())
    left = plot.x.start_px
    parts = [
        tag("text", name, x=left - 12, y=top + 18, class_="label end"),
        tag(
            "text",
            f"{total:.1f} ms, {count} round{'' if count == 1 else 's'}",
            x=left - 12,
            y=top + 34,
            class_="tick end",
        ),
    ]
    begin = 0.0
    for key, look, text in _PARTS:
        x, width = plot.x(begin), plot.x(means[key]) - plot.x(0.0)
        share = means[key] / total if total else 0.0
        parts.append(
            box(
                x,
                top + 2,
                width - 1,
                36,
                f"fill {look}",
                f"{text}: {means[key]:.2f} ms of {total:.2f} ({_percent(share)})",
            )
        )
        if width > 46:
            parts.append(tag("text", f"{means[key]:.1f}", x=x + width / 2, y=top + 24, class_="inside mid"))
        begin += means[key]
    return joined(parts)


def _mean_parts_ms(records: Sequence[RoundRecord]) -> dict[str, float]:
    outcomes = [record.outcome for record in records]
    return {
        "draft": fmean(outcome.draft_ns for outcome in outcomes) / 1e6,
        "queue": fmean(outcome.queue_ns for outcome in outcomes) / 1e6,
        "forward": fmean(outcome.forward_ns for outcome in outcomes) / 1e6,
        "rest": fmean(map(network_and_loop_ns, records)) / 1e6,
    }
