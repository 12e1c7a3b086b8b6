"""As much SVG as the report needs: elements, scales, axes. All text and attributes are escaped.

Colours, strokes and fonts are classes of the page's style sheet, so that a chart follows light and dark. Lengths are
CSS pixels.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

_EMPTY = Markup("")
_TICK_LABEL_GAP = 8


def tag(name: str, *children: str, **attributes: str | float) -> Markup:
    """An element; `class_` is class, other underscores are hyphens; children that are not Markup are escaped."""
    pairs = _EMPTY.join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _value(value)) for key, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(name, pairs, joined(children))


def joined(parts: Iterable[str]) -> Markup:
    """The parts in a row; those that are not Markup are escaped."""
    return _EMPTY.join(parts)


def _value(value: str | float) -> str:
    return value if isinstance(value, str) else number(value)


def number(value: float) -> str:
    """A coordinate, to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps [low, high] linearly onto pixels."""

    low: float
    high: float
    start_px: float
    end_px: float

    def __call__(self, value: float) -> float:
        span = (self.high - self.low) or 1.0
        return self.start_px + (value - self.low) / span * (self.end_px - self.start_px)


def nice_ticks(high: float, most: int = 5, *, whole: bool = False) -> list[float]:
    """Round numbers from 0 to the first one that is not below `high`: at most about `most` steps of 1, 2 or 5."""
    step = max(high, 1e-9) / most
    magnitude = 10.0 ** math.floor(math.log10(step))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= step * (1 - 1e-9))
    if whole:
        step = max(1.0, math.ceil(step))
    return [index * step for index in range(math.ceil(high / step - 1e-9) + 1)] if high > 0 else [0.0, step]


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot area within a drawing of `width` times `height`."""

    width: float
    height: float
    x: Scale
    y: Scale

    @classmethod
    def sized(
        cls, width: float, height: float, x_range: tuple[float, float], y_high: float, *, left: float = 52
    ) -> "Plot":
        """With room for the labels of both axes; y begins at 0."""
        x = Scale(x_range[0], x_range[1], left, width - 10)
        return cls(width, height, x, Scale(0.0, y_high, height - 42, 12))

    def drawing(self, label: str, marks: Iterable[str], *, fluid: bool) -> Markup:
        """The whole drawing; `fluid`: it scales with the page. `label` is for those who do not see it."""
        size = {"width": "100%"} if fluid else {"width": number(self.width), "height": number(self.height)}
        box = f"0 0 {number(self.width)} {number(self.height)}"
        return tag("svg", *marks, viewBox=box, role="img", aria_label=label, **size)

    def axes(
        self,
        x_title: str,
        y_title: str,
        x_ticks: Iterable[tuple[float, str]],
        y_ticks: Sequence[float],
        y_label: Callable[[float], str] = lambda value: f"{value:g}",
    ) -> Markup:
        """Grid lines, labels and titles."""
        left, right, bottom, top = self.x.start_px, self.x.end_px, self.y.start_px, self.y.end_px
        parts = []
        for value in y_ticks:
            y = self.y(value)
            parts.append(tag("line", x1=left, x2=right, y1=y, y2=y, class_="base" if value == 0 else "grid"))
            parts.append(tag("text", y_label(value), x=left - _TICK_LABEL_GAP, y=y + 4, class_="tick end"))
        parts += [tag("text", text, x=self.x(value), y=bottom + 16, class_="tick mid") for value, text in x_ticks]
        parts.append(tag("text", x_title, x=(left + right) / 2, y=bottom + 36, class_="title mid"))
        middle = (top + bottom) / 2
        turned = f"rotate(-90 12 {number(middle)})"
        parts.append(tag("text", y_title, x=12, y=middle, transform=turned, class_="title mid"))
        return joined(parts)


def box(x: float, y: float, width: float, height: float, class_: str, title: str = "") -> Markup:
    """A rectangle, with a tooltip."""
    tooltip = [tag("title", title)] if title else []
    return tag("rect", *tooltip, x=x, y=y, width=max(0.0, width), height=max(0.0, height), class_=class_)


def dot(x: float, y: float, radius: float, class_: str, title: str = "") -> Markup:
    """A circle, with a tooltip."""
    return tag("circle", *([tag("title", title)] if title else []), cx=x, cy=y, r=radius, class_=class_)


def dots(points: Iterable[tuple[float, float]], class_: str) -> Markup:
    """Many small dots in one element: a path of lines without length and round ends."""
    return tag("path", d="".join(f"M{number(x)} {number(y)}h0" for x, y in points), class_=class_)


def line(points: Iterable[tuple[float, float | None]], class_: str) -> Markup:
    """A line through the points, interrupted where there is none."""
    return tag("path", d=_joined_points(points, lambda x, y: f"L{number(x)} {number(y)}"), class_=class_)


def steps(points: Iterable[tuple[float, float | None]], class_: str, width: float) -> Markup:
    """A horizontal piece of `width` around each point, joined upright; interrupted where there is none."""
    half = width / 2
    shifted = [(x - half, y) for x, y in points]
    path = _joined_points(shifted, lambda x, y: f"H{number(x)}V{number(y)}")
    pieces = path.split("M")[1:]
    ends = _ends(shifted)
    finished = "".join(f"M{piece}H{number(end + width)}" for piece, end in zip(pieces, ends, strict=True))
    return tag("path", d=finished, class_=class_)


def _joined_points(points: Iterable[tuple[float, float | None]], onward: Callable[[float, float], str]) -> str:
    parts: list[str] = []
    broken = True
    for x, y in points:
        if y is not None:
            parts.append(f"M{number(x)} {number(y)}" if broken else onward(x, y))
        broken = y is None
    return "".join(parts)


def _ends(points: Sequence[tuple[float, float | None]]) -> list[float]:
    """Where each uninterrupted piece has its last point."""
    following = [*(y for _, y in points[1:]), None]
    return [x for (x, y), after in zip(points, following, strict=True) if y is not None and after is None]
